// What a page can do more where scripts run: values under the pointer, policies to choose, tables to sort
// and to filter, and an address that links to what is shown. All of it works by keyboard, and everything is on the page
// without it. What was measured is only ever handled as text.
(() => {
  'use strict';
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const make = (tag, properties, ...inner) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...inner);
    return made;
  };
  const visible = element => element.getClientRects().length > 0;

  // ---- What is shown: in the address behind the section, as #cell-2?without=thp&t4=2m&s4=-3

  const without = new Set();
  const tables = all('table').map(grid);

  function remember() {
    const told = new URLSearchParams([...without].map(arm => ['without', arm]));
    for (const one of tables) {
      if (one.wanted) told.set(`t${one.number}`, one.wanted);
      if (one.order) told.set(`s${one.number}`, one.order);
    }
    const place = location.hash.slice(1).split('?')[0], query = told.toString() && `?${told}`;
    const hash = place || query ? `#${place}${query}` : '';
    try {
      if (hash !== location.hash) history.replaceState(null, '', hash || location.pathname + location.search);
    } catch { /* a browser may forbid it: only the link is missing */ }
  }

  function recall() {
    const [place, query] = location.hash.slice(1).split(/\?(.*)/s);
    if (query !== undefined) {
      const told = new URLSearchParams(query);
      without.clear();
      told.getAll('without').forEach(arm => without.add(arm));
      for (const one of tables) {
        one.wanted = told.get(`t${one.number}`) ?? '';
        one.order = Number(told.get(`s${one.number}`)) || 0;
      }
      document.getElementById(place)?.scrollIntoView({ behavior: 'instant' });
    }
    show();
  }

  function show() {
    for (const one of all('[data-arm]')) one.toggleAttribute('data-off', without.has(one.dataset.arm));
    tables.forEach(one => one.show());
    for (const one of all('input', tools)) one.checked = !without.has(one.value);
    const hidden = without.size > 0 || tables.some(one => one.wanted || one.order);
    again.hidden = !hidden;
    remember();
  }

  // ---- Policies

  const tools = document.querySelector('.tools'), again = tools.querySelector('button');
  const arms = tools.querySelector('fieldset');
  arms.hidden = all('input', arms).length < 2;
  tools.hidden = arms.hidden && tables.every(one => !one.sorts);
  tools.addEventListener('submit', event => event.preventDefault());
  tools.addEventListener('change', ({ target }) => {
    if (target.checked) without.delete(target.value);
    else without.add(target.value);
    show();
  });
  again.addEventListener('click', () => {
    without.clear();
    for (const one of tables) [one.wanted, one.order] = ['', 0];
    show();
    (all('input', tools).find(visible) ?? document.body).focus();
  });

  // ---- Tables

  // The first number of a text with its unit, so that 900 µs come before 1.2 ms; NaN where there is none.
  function measure(text) {
    const found = /([−+-]?)([\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([KMGT]iB|[TGMkmµn]?s\b|[TGMk]\b)?/.exec(text);
    if (!found) return NaN;
    const units = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, ms: 1e-3, µs: 1e-6, ns: 1e-9 };
    const large = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
    const size = Number(found[2].replaceAll(',', '')) * (units[found[3]] ?? large[found[3]] ?? 1);
    return /[−-]/.test(found[1]) ? -size : size;
  }

  function grid(table, at) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const one = { number: at + 1, wanted: '', order: 0, sorts: rows.length > 1 && rows.every(row => row.cells[0].textContent.trim()), show: apply };
    const dropped = heads.map(() => false);
    let sorted = 0, field, count;
    if (one.sorts) {
      heads.forEach((head, column) => {
        const button = make('button', { type: 'button', className: 'sort' }, ...head.childNodes);
        head.append(button);
        button.addEventListener('click', () => {
          one.order = { [column + 1]: -column - 1, [-column - 1]: 0 }[one.order] ?? column + 1;
          show();
        });
      });
    }
    if (rows.length > 9) {
      field = make('input', { type: 'search', placeholder: 'filter rows' });
      field.setAttribute('aria-label', `filter rows: ${table.caption?.textContent ?? ''}`);
      count = make('output', { className: 'quiet' });
      field.addEventListener('input', () => { one.wanted = field.value; show(); });
      table.parentElement.before(make('p', { className: 'filter' }, field, count));
    }
    return one;

    function apply() {
      const words = one.wanted.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = words.length ? row.textContent.toLowerCase() : '';
        const off = without.has(row.dataset.arm) || !words.every(word => text.includes(word));
        row.toggleAttribute('data-off', Boolean(off));
        shown += !off;
      }
      if (field) {
        if (field.value !== one.wanted) field.value = one.wanted;
        count.textContent = shown < rows.length ? `${shown} of ${rows.length} rows` : '';
      }
      heads.forEach((head, column) => {
        const off = without.has(head.dataset.arm);
        if (off === dropped[column]) return;
        dropped[column] = off;
        for (const row of rows) row.cells[column]?.toggleAttribute('data-off', off);
      });
      if (sorted !== one.order) sort();
    }

    function sort() {
      sorted = one.order;
      const column = Math.abs(sorted) - 1, way = Math.sign(sorted);
      heads.forEach((head, index) => {
        if (index === column) head.setAttribute('aria-sort', way > 0 ? 'ascending' : 'descending');
        else head.removeAttribute('aria-sort');
      });
      if (column < 0 || column >= heads.length) return body.append(...rows);
      const texts = new Map(rows.map(row => [row, row.cells[column]?.textContent.trim() ?? '']));
      const sizes = new Map(rows.map(row => [row, measure(texts.get(row))]));
      const numeric = rows.filter(row => !Number.isNaN(sizes.get(row))).length * 2 > rows.length;
      const nothing = row => (numeric ? Number.isNaN(sizes.get(row)) : texts.get(row) === '–');
      const order = numeric ? (a, b) => sizes.get(a) - sizes.get(b)
        : (a, b) => texts.get(a).localeCompare(texts.get(b), 'en', { numeric: true });
      // What has no value stands last in either direction.
      return body.append(...[...rows].sort((a, b) => nothing(a) - nothing(b) || way * order(a, b)));
    }
  }

  // ---- Values of figures: under the pointer, and from mark to mark by the arrow keys

  const tip = make('div', { className: 'tip', hidden: true, role: 'status' });
  document.body.append(tip);
  for (const svg of all('figure svg')) {
    let marks, lit;
    const region = svg.closest('.scroll');
    const known = () => {
      // A browser would show the titles by itself, beside what is shown here.
      marks ??= all('title', svg).filter(title => title.parentNode !== svg).map(title => {
        const mark = { element: title.parentNode, text: title.textContent };
        title.remove();
        return mark;
      });
      return marks.filter(({ element }) => !element.hasAttribute('data-off'));
    };
    const light = mark => {
      lit?.element.removeAttribute('data-lit');
      lit = mark;
      tip.hidden = !mark;
      if (!mark) return;
      mark.element.setAttribute('data-lit', '');
      tip.textContent = mark.text;
      place();
    };
    const place = () => {
      if (!lit) return;
      const { left, right, top, bottom } = lit.element.getBoundingClientRect();
      const { offsetWidth: width, offsetHeight: height } = tip;
      tip.style.left = `${Math.max(4, Math.min((left + right - width) / 2, document.documentElement.clientWidth - width - 4))}px`;
      tip.style.top = `${top > height + 10 ? top - height - 8 : bottom + 8}px`;
    };
    const under = event => {
      let best, least = 18;
      for (const mark of known()) {
        const { left, right, top, bottom } = mark.element.getBoundingClientRect();
        const x = Math.max(left - event.clientX, 0, event.clientX - right);
        const y = Math.max(top - event.clientY, 0, event.clientY - bottom);
        // Of marks within each other the smallest, of others the nearest.
        const far = Math.hypot(x, y) + (right - left + bottom - top) / 1e4;
        if (far < least) [best, least] = [mark, far];
      }
      if (best !== lit) light(best);
    };
    svg.addEventListener('pointermove', under);
    svg.addEventListener('pointerdown', under);
    svg.addEventListener('pointerleave', () => light());
    region.setAttribute('aria-description', 'arrow keys go from value to value');
    region.addEventListener('blur', () => light());
    region.addEventListener('scroll', place, { passive: true });
    addEventListener('scroll', place, { passive: true });
    region.addEventListener('keydown', event => {
      const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
      const found = step || event.key === 'Escape' ? known() : [];
      if (event.key === 'Escape') light();
      if (!step || !found.length) return;
      event.preventDefault();
      const from = found.indexOf(lit), to = from < 0 && Number.isFinite(step) ? (step > 0 ? 0 : Infinity) : from + step;
      const mark = found[Math.max(0, Math.min(to, found.length - 1))];
      mark.element.scrollIntoView({ block: 'nearest', inline: 'nearest', behavior: 'instant' });
      light(mark);
    });
  }
  addEventListener('hashchange', recall);
  recall();

  // ---- A page that is served follows its run (hugewise report --serve); a file asks nothing.

  const version = document.documentElement.dataset.live;
  if (version) setInterval(async () => {
    if (document.hidden) return;
    try {
      const told = await fetch('version', { cache: 'no-store' });
      if (told.ok && await told.text() !== version) location.reload();
    } catch { /* it has ended: the page stays as it is */ }
  }, 2000);
})();
