// All of our own JavaScript: whether the page still lives, what it leaves alone, and keys.
const live = () => document.getElementById("live");

// What somebody fills in or selects stays as it is, and the page goes on when that is over.
function isInHand() {
  const selection = getSelection();
  const range = selection?.rangeCount && !selection.isCollapsed && selection.getRangeAt(0);
  if (range && live()?.contains(range.commonAncestorContainer)) return true;
  return [...(live()?.querySelectorAll("input:not([type=hidden]), textarea, select") ?? [])].some((field) =>
    field.options ? [...field.options].some((each) => each.selected !== each.defaultSelected && field.matches(":focus"))
      : field.value !== field.defaultValue || (field.type === "checkbox" && field.checked !== field.defaultChecked));
}

document.addEventListener("htmx:before:request", (event) => {
  // Nobody sees it: it comes back when somebody does.
  if (document.hidden || isInHand()) {
    event.detail.ctx.isLeftOut = true;
    event.preventDefault();
  }
});
document.addEventListener("htmx:before:swap", (event) => {
  if (isInHand()) event.preventDefault();
});
document.addEventListener("htmx:finally:request", (event) => {
  if (event.detail.ctx?.isLeftOut) return;
  const answered = event.detail.ctx?.response;
  document.getElementById("away")?.toggleAttribute("hidden", Boolean(answered && answered.status < 500));
  live()?.classList.toggle("dim", !(answered && answered.status < 500));
});

// On a phone both rows of links are wider than the screen. Sideways only: the page stays at its top.
for (const chosen of document.querySelectorAll("nav [aria-current]")) {
  const row = chosen.closest("nav"), link = chosen.getBoundingClientRect(), shown = row.getBoundingClientRect();
  row.scrollLeft += link.left + link.width / 2 - shown.left - shown.width / 2;
}

const places = { o: "/", d: "/dead", w: "/workers", s: "/schedules", p: "/pipelines" };
let went = 0;
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const links = [...document.querySelectorAll("#live tbody th a")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "/") {
    const field = document.querySelector("form[role=search] input:not([type=hidden])");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  } else if (event.key === "j") links[at + 1]?.focus();
  else if (event.key === "k") links[at < 0 ? links.length - 1 : Math.max(at - 1, 0)]?.focus();
  else if (event.key === "g") went = event.timeStamp;
  else if (places[event.key] && event.timeStamp - went < 1500) {
    const home = document.querySelector("a.brand").getAttribute("href").replace(/\/$/, "");
    location.assign(home + places[event.key]);
  }
});
