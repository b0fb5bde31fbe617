"use strict";

// The list of pages is open beside the text, and closed above it on a phone.
document.querySelector("nav details").open = matchMedia("(min-width: 50rem)").matches;

for (const block of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  block.append(button);
}

const root = document.body.dataset.root;
const input = document.getElementById("search");
const found = document.getElementById("found");
let sections; // loaded by the first search

// score is 0 unless the section has all words; headings count more than text.
function score(section, words) {
  let sum = 0;
  const heading = (section.page + " " + section.heading).toLowerCase(), text = section.text.toLowerCase();
  for (const word of words) {
    const times = text.split(word).length - 1;
    if (heading.includes(word)) sum += 20;
    else if (times === 0) return 0;
    sum += Math.min(times, 5);
  }
  return sum;
}

async function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter((w) => w.length > 1);
  sections ??= fetch(root + "search.json").then((answer) => answer.json());
  const all = await sections;
  const hits = all.map((section) => ({ section, score: words.length ? score(section, words) : 0 }))
    .filter((hit) => hit.score > 0).sort((a, b) => b.score - a.score).slice(0, 20);
  found.replaceChildren(...hits.map(({ section }) => {
    const item = document.createElement("li"), link = document.createElement("a"), page = document.createElement("small");
    link.href = root + section.url;
    link.textContent = section.heading || section.page;
    page.textContent = section.page;
    link.append(page);
    item.append(link);
    return item;
  }));
  found.hidden = hits.length === 0;
}

input.addEventListener("input", search);
input.addEventListener("keydown", (event) => {
  const first = found.querySelector("a");
  if (event.key === "Enter" && first) location.href = first.href;
  if (event.key === "Escape") found.hidden = true;
});
found.addEventListener("click", () => { found.hidden = true; });
