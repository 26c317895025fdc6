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
         file:write(string.format("%d %d %.0f 0 %d %06d\n", sysbench.tid, number, rows[at].took, seconds, rest))
      end
   end
   file:close()
   return done(thread)
end
