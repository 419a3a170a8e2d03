// What is on this page is drawn; a failure is said on it.
function copying() {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const from = byId(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(from.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(from);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
}

function confusions() {
  const chosen = byId("confusion-set");
  if (chosen) chosen.addEventListener("change", () => { for (const one of document.querySelectorAll(".confusion")) one.hidden = one.dataset.index !== chosen.value; });
}

async function start() {
  copying();
  confusions();
  if (byId("reliability")) showReliability();
  if (byId("comparison")) showComparison();
  if (byId("study")) showStudy();
  if (byId("curves")) drawCurves(byId("curves"), byId("curves-table"), data.curves);
  await Promise.all([byId("risk") ? showSelective() : null, byId("cloud") ? showExplorer() : null]);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((problem) => {
  const box = byId("failure");
  box.textContent = `This browser could not draw all of the page (${problem.message}). A current one can; the tables are complete.`;
  box.hidden = false;
  console.error(problem);
});
