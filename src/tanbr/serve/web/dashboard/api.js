// Talks to the server that this page came from. The administration token lives only as long as the page.

const KEPT = "tanbr-token";
let adminToken = "";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

export function hasAdminToken() {
  return adminToken !== "";
}

export async function get(path) {
  const token = adminToken || sessionStorage.getItem(KEPT);
  return ask(path, { headers: token ? { authorization: `Bearer ${token}` } : {} });
}

export async function act(action, body, token) {
  const shown = token || adminToken;
  const headers = { authorization: `Bearer ${shown}` };
  if (body) headers["content-type"] = "application/json";
  try {
    const answer = await ask(`/v1/admin/${action}`, { method: "POST", headers, body: body && JSON.stringify(body) });
    adminToken = shown;
    return answer;
  } catch (error) {
    if (error.status === 401) adminToken = "";
    throw error;
  }
}

async function ask(path, options) {
  const response = await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(60000) });
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, value.error?.message ?? `status ${response.status}`);
  return value;
}
