// What a browser made of a report or of a figure's file, as plain values in CSS pixels: figures with their texts, marks
// that leave their plot, words of tables that are broken, texts outside of figures that others cover or the page cuts,
// and what is wider than the window without a scroll bar of its own.
(() => {
  document.querySelectorAll('details').forEach(one => { one.open = true; });
  const box = element => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return [left, top, right, bottom];
  };
  // The corners of a text as it stands there, turned or not.
  const corners = text => {
    const { x, y, width, height } = text.getBBox(), matrix = text.getScreenCTM();
    return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]].map(([a, b]) => {
      const point = new DOMPoint(a, b).matrixTransform(matrix);
      return [point.x, point.y];
    });
  };
  const size = text => {
    const matrix = text.getScreenCTM();
    return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
  };
  const figures = [...document.querySelectorAll('svg:not(.dot)')].filter(svg => svg.checkVisibility()).map(svg => ({
    name: svg.querySelector('title')?.textContent ?? document.URL,
    box: box(svg),
    texts: [...svg.querySelectorAll('text')].filter(text => text.textContent.trim()).map(text => (
      { text: text.textContent, corners: corners(text), size: size(text) })),
    // Only a file of its own says which group is a mark, and which rectangle its plot.
    marks: [...svg.querySelectorAll('.role-mark:not(.mark-text)')].flatMap(group => {
      const plot = group.parentNode.parentNode.querySelector(':scope > path.background');
      return [...group.querySelectorAll('path, line, rect')].map(mark => ({ box: box(mark), plot: box(plot) }));
    }),
  }));
  const broken = [];
  let words = 0;
  for (const cell of document.querySelectorAll('th, td')) {
    const nodes = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      for (const word of nodes.currentNode.data.matchAll(/\S+/g)) {
        words += 1;
        const range = document.createRange();
        range.setStart(nodes.currentNode, word.index);
        range.setEnd(nodes.currentNode, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map(one => Math.round(one.top)));
        if (lines.size > 1) broken.push(word[0]);
      }
    }
  }
  // The part of a box that can be seen: what scrolls by itself, or is cut, shows only what lies within it.
  const inside = (element, seen) => {
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      if (getComputedStyle(at).overflowX === 'visible') continue;
      const [left, top, right, bottom] = box(at);
      seen = [Math.max(seen[0], left), Math.max(seen[1], top), Math.min(seen[2], right), Math.min(seen[3], bottom)];
    }
    return seen;
  };
  const prose = [], covered = [];
  const nodes = document.createTreeWalker(document.body ?? document.documentElement, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) {
    const text = nodes.currentNode, element = text.parentElement;
    if (!text.data.trim() || element.closest('svg, script, style, option')) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const { left, top, right, bottom } of range.getClientRects()) {
      const seen = inside(element, [left, top, right, bottom]);
      if (seen[2] - seen[0] > 1 && seen[3] - seen[1] > 1) prose.push({ text, seen });
    }
  }
  prose.sort((one, other) => one.seen[1] - other.seen[1]);
  prose.forEach((one, at) => {
    if (one.seen[0] < -1 || one.seen[2] > document.documentElement.clientWidth + 1) {
      covered.push(`${one.text.data.trim()} is cut`);
    }
    for (let next = at + 1; next < prose.length && prose[next].seen[1] < one.seen[3] - 2; next += 1) {
      const other = prose[next];
      const across = Math.min(one.seen[2], other.seen[2]) - Math.max(one.seen[0], other.seen[0]);
      if (other.text !== one.text && across > 1) {
        covered.push(`${one.text.data.trim()} and ${other.text.data.trim()} overlap`);
      }
    }
  });
  const beyond = [...document.querySelectorAll('body *:not(svg *)')].filter(one => {
    const [left, top, right, bottom] = inside(one, box(one));
    return right - left > 1 && bottom - top > 1 && right > document.documentElement.clientWidth + 1;
  }).map(one => `${one.tagName}: ${one.textContent.trim().slice(0, 60)}`);
  const keys = [...document.querySelectorAll('figure svg')].map(svg => (
    svg.getAttribute('aria-labelledby').replace(/^figure-|-title$/g, '')));
  const faces = [...document.fonts].map(face => `${face.family} ${face.status}`);
  return { figures, words, broken, prose: prose.length, covered, beyond, keys, faces };
})()
