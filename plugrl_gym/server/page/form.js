"use strict";

// The key goes to the server in a header, once, and is kept nowhere: the answer sets a cookie.

const form = document.getElementById("form");
const key = document.getElementById("key");
const complaint = document.getElementById("complaint");
const VISIBLE = /^[!-~]+$/;

async function knock(text) {
  if (!VISIBLE.test(text)) return "That is no key: a key has no blanks, and only signs of ASCII.";
  let answer;
  try {
    const headers = { Authorization: `Api-Key ${text}` };
    answer = await fetch("/login", { headers, cache: "no-store" });
  } catch {
    return "The server does not answer. Try again.";
  }
  if (answer.ok) return null;
  return answer.status === 401 ? "That is not the key of this server." : await answer.text();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  complaint.textContent = "";
  const refusal = await knock(key.value.trim());
  key.value = "";
  if (refusal === null) {
    location.reload();
    return;
  }
  complaint.textContent = refusal;
  key.focus();
});
