with observed as (
  select *, unnest(list_distinct(map_keys(metrics) || map_keys(absent) || ['wall_s', 'cpu_s', 'peak_bytes',
    'pool_bytes'])) as metric
  from (select rowid as place, * exclude (knobs, series, facts, pressure) from attempts)
)
select $study as study, o.run, $state as run_state, $host as host, $kernel as kernel, o.cell, u.workload, o.arm,
  o.baseline, o.policy, o.mechanism, o.session, o.block, b.state as block_state, o."order", o.slot, o.number, o.copy,
  case when o.copy = 1 then o.block::varchar else o.block || '#' || o.copy end as pair, o.state,
  o.reason, o.started, o.ended, o.delivery.delivered as delivered, o.delivery.share as delivered_share, o.metric,
  u.unit, u.better, coalesce(u.judged, false) as judged,
  case when map_contains(o.metrics, o.metric) then o.metrics[o.metric] when o.metric = 'wall_s' then o.wall_s
    when o.metric = 'cpu_s' then o.cpu_s when o.metric = 'peak_bytes' then o.peak_bytes
    when o.metric = 'pool_bytes' then o.pool_bytes end as value,
  o.absent[o.metric] as absent, v.verdict, v.ratio, v.low, v.high, v.confidence, o.place
from observed o
left join units u on u.cell = o.cell and u.metric = o.metric
left join verdicts v on v.cell = o.cell and v.arm = o.arm and v.metric = o.metric and not v.end_point
left join blocks b on b.block = o.block
order by o.place, o.metric
