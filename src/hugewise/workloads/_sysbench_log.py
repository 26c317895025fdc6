"""sysbench with a log of every transaction, as its own report cannot tell the parts of a run apart.

A script of ours stands before the test: sysbench runs Lua, and calls `event` for each transaction. Ends and times are
kept in memory and written at the end, so that nothing is written while transactions are timed. The form is pgbench's,
one file a thread: see `_transaction_log`. It ends the test when a file is there, with its report, as sysbench itself
knows only its time.

Sources: sysbench 1.0, src/lua (`event`, which ends its thread by anything but nil or false, `thread_done`,
`sysbench.tid`); LuaJIT, ffi; clock_gettime(2), access(2).
"""

from __future__ import annotations

import re

from hugewise.model.scene import Places, Write

__all__ = ["LOGS", "enough", "environment", "path", "script"]

LOGS = re.compile(r"transactions\.\d+")

_NAME, _ENOUGH = "logged.lua", "enough"
_SCRIPT = """\
require(os.getenv("HUGEWISE_TEST"))

local ffi = require("ffi")
ffi.cdef[[
struct hugewise_time { int64_t s; int64_t ns; };
struct hugewise_transaction { double ended; double took; };
int hugewise_clock(int clock, struct hugewise_time *now) __asm__("clock_gettime");
int hugewise_access(const char *path, int mode) __asm__("access");
]]
local REALTIME, MONOTONIC, ROWS, PAUSE = 0, 1, 65536, 10000
local time = ffi.new("struct hugewise_time")
local pages, rows, used = {}, nil, ROWS

local function microseconds(clock)
   ffi.C.hugewise_clock(clock, time)
   return tonumber(time.s) * 1e6 + tonumber(time.ns) * 1e-3
end

-- Taken once: a clock that somebody sets moves no transaction out of its turn.
local to_wall = microseconds(REALTIME) - microseconds(MONOTONIC)
local transaction, done = event, thread_done
local enough, looked = os.getenv("HUGEWISE_ENOUGH"), 0

function event(thread)
   local begun = microseconds(MONOTONIC)
   -- Not each time: a look would be part of what is timed.
   if begun - looked > PAUSE then
      looked = begun
      if ffi.C.hugewise_access(enough, 0) == 0 then
         return true
      end
   end
   local said = transaction(thread)
   if used == ROWS then
      rows, used = ffi.new("struct hugewise_transaction[?]", ROWS), 0
      pages[#pages + 1] = rows
   end
   local row = rows[used]
   local now = microseconds(MONOTONIC)
   row.took, row.ended = now - begun, now + to_wall
   used = used + 1
   return said
end

function thread_done(thread)
   local file = assert(io.open(os.getenv("HUGEWISE_LOG") .. "." .. sysbench.tid, "w"))
   for page, rows in ipairs(pages) do
      for at = 0, (page == #pages and used or ROWS) - 1 do
         local number, seconds = (page - 1) * ROWS + at + 1, math.floor(rows[at].ended / 1e6)
         local rest = math.floor(rows[at].ended - seconds * 1e6)
         file:write(string.format("%d %d %.0f 0 %d %06d\\n", sysbench.tid, number, rows[at].took, seconds, rest))
      end
   end
   file:close()
   return done(thread)
end
"""


def script() -> Write:
    """The script, to be written below the data."""
    return Write(_NAME, _SCRIPT)


def enough() -> Write:
    """What ends the test, to be written below the data."""
    return Write(_ENOUGH, "")


def path(places: Places) -> str:
    """What sysbench is given in place of the test's name."""
    return f"{places.data}/{_NAME}"


def environment(test: str, places: Places) -> dict[str, str]:
    """What the script has to know: the test that it stands for, where its logs go, and what ends it."""
    return {
        "HUGEWISE_TEST": test,
        "HUGEWISE_LOG": f"{places.run}/transactions",
        "HUGEWISE_ENOUGH": f"{places.data}/{_ENOUGH}",
    }
