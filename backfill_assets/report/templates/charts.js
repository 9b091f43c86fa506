"use strict";
// Draws each chart when it first becomes visible: one in a closed part of the page has no width yet.
const draw = (place) => {
  if (place.dataset.drawn || place.closest("details:not([open])")) return;
  place.dataset.drawn = "begun";
  const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
  vegaEmbed(place, spec, {mode: "vega-lite", renderer: "svg", actions: false})
    .then(() => { place.dataset.drawn = "yes"; })
    .catch((error) => { place.dataset.drawn = "no"; place.textContent = "The chart could not be drawn: " + error; });
};
const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);
document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", drawAll));
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  drawAll();
});
document.querySelectorAll("button[data-copy]").forEach((button) => button.addEventListener("click", () => {
  const text = document.getElementById(button.dataset.copy).textContent;
  navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; });
}));
drawAll();
