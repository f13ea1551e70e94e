-- For wrk: sends the requests of a file in turn (bench/wire.py, save), and prints one line of JSON at the end.

local requests, turn = {}, 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  for size in function() return file:read(4) end do
    local a, b, c, d = size:byte(1, 4)
    requests[#requests + 1] = file:read(((a * 256 + b) * 256 + c) * 256 + d)
  end
  file:close()
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary)
  local e = summary.errors
  print(string.format('{"answers": %d, "seconds": %f, "refused": %d, "broken": %d}',
    summary.requests, summary.duration / 1e6, e.status, e.connect + e.read + e.write + e.timeout))
end
