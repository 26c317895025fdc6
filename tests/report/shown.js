// What a browser made of a report or of a figure's file, as plain values in CSS pixels: figures with their texts, marks
// that leave their plot, and words of tables that are broken.
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
  const figures = [...document.querySelectorAll('svg:not(.dot)')].map(svg => ({
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
  const faces = [...document.fonts].map(face => `${face.family} ${face.status}`);
  return { figures, words, broken, faces };
})()
