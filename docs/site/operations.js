// Shows the rows that have every word of the search; an address that ends in ?op=gelu starts with one.
const find = document.getElementById("find");
const rows = [...document.querySelectorAll("#operations tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());

function show() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  rows.forEach((row, i) => {
    row.hidden = !words.every((word) => texts[i].includes(word));
    shown += !row.hidden;
  });
  document.getElementById("found").textContent = `${shown} of ${rows.length}`;
}

find.value = new URLSearchParams(location.search).get("op") ?? "";
find.addEventListener("input", show);
show();
