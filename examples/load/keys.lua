local n = 0
request = function()
  n = n + 1
  return wrk.format("POST", nil, {["Routing-Key"] = "customer-" .. n % 10000}, '{"order": 1}')
end
