// All of our own JavaScript: whether the page still lives, and keys.
document.addEventListener("htmx:finally:request", (event) => {
  const answered = event.detail.ctx?.response;
  document.getElementById("away")?.toggleAttribute("hidden", Boolean(answered && answered.status < 500));
  document.getElementById("live")?.classList.toggle("dim", !(answered && answered.status < 500));
});

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
