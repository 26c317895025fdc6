// What a reader sees of the first cell, for the tests of the page's script.
const seen = element => element.getClientRects().length > 0;
// The table whose caption has these words.
const table = words => {
  const found = [...document.querySelectorAll('#cell-1 table')].find(one => one.caption.textContent.includes(words));
  found.closest('details')?.setAttribute('open', '');
  return found;
};
// The entries of a column, of rows that are seen, in their order.
const column = (words, at = 0) =>
  [...table(words).tBodies[0].rows].filter(seen).map(row => row.cells[at].textContent);
const field = words => table(words).parentElement.previousElementSibling.querySelector('input');
const tip = () => document.querySelector('.tip');
// The middle of the first mark that tells something.
const mark = () => {
  const one = [...document.querySelectorAll('#cell-1 figure svg path')].find(path => path.querySelector('title'));
  one.scrollIntoView({ block: 'center', behavior: 'instant' });
  const { left, top, width, height } = one.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
};
const arms = elements => [...document.querySelectorAll(elements)].filter(seen).map(one => one.dataset.arm);
