create view observations as
  select block, cell, arm, copy, number, state, unnest(map_keys(metrics)) as metric,
    unnest(map_values(metrics)) as value
  from attempts;
create view coverage as
  select block, cell, arm, copy, number, unnest(map_keys(delivery.coverage)) as page,
    unnest(map_values(delivery.coverage)) as bytes
  from attempts;
create view samples as
  select run, cell, arm, block, copy, number, state, unnest(range(1, len(series) + 1)) as second,
    unnest(series) as throughput
  from attempts;
create view facts as
  select run, cell, arm, block, copy, number, state, name, fact ->> '$' as text,
    case when json_type(fact) <> 'VARCHAR' then cast(fact as double) end as value
  from (
    select *, unnest(map_keys(facts)) as name, unnest(map_values(facts)) as fact
    from (select run, cell, arm, block, copy, number, state, facts from attempts)
  );
