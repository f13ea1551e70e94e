"""Check that each customer's orders were worked on in order: docs/tutorial-groups.md."""

import fileinput

with fileinput.input() as lines:
    rows = sorted(line.split() for line in lines)
newest, wrong, seen = {}, 0, set()
for _, customer, number in rows:
    if (customer, number) not in seen:
        seen.add((customer, number))
        wrong += int(number) < newest.get(customer, 0)
        newest[customer] = int(number)
print(f"{len(seen)} orders of {len(newest)} customers, {wrong} out of order")
