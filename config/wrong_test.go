package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a wrong file gets: every line, exactly. The file is called f.yaml, and
// a line of want stands for "f.yaml:" and that line.
var wrong = []struct{ name, file, want string }{
	{"several at once, in the order of the file", `
listne: 127.0.0.1:8700
queue:
  max_requests: 0
  max_bytes: 64MB
replicas:
  - url: ftp://host
    slots: 5000
breaker: {trial_start: 0}
`, `
2: listne: unknown key: the nearest known key is listen
4: queue.max_requests: 0 is out of range: want a whole number from 1 to 1000000
5: queue.max_bytes: "64MB" is not a size: want bytes, KiB, MiB or GiB, such as 64MiB
7: replicas[0].url: the scheme "ftp" is not spoken here: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
8: replicas[0].slots: 5000 is out of range: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}
9: breaker.trial_start: 0 is out of range: want a number above 0 and at most 1`},

	{"unknown keys", `
retry: {max_atempts: 3, stal_timeout: 60s, zebra: 1}
max_body: 64MiB
deadline: 10s
"two\nlines": 1
`, `
2: retry.max_atempts: unknown key: the nearest known key is max_attempts
2: retry.stal_timeout: unknown key: the nearest known key is stall_timeout
2: retry.zebra: unknown key: the nearest known key is budget, of max_attempts, budget, first_token_floor, first_token_factor, load_timeout, stall_timeout, buffer
3: max_body: unknown key here: the nearest known key is limits.max_body
4: deadline: unknown key here: the nearest known key is classes[].deadline
5: "two\nlines": unknown key: the nearest known key is tls, of listen, admin, tls, replicas, models, classes, default_class, keys, queue, admission, retry, breaker, health, affinity, limits, cors, log`},

	{"duplicates", `
listen: 127.0.0.1:1
retry: {budget: 0.1, budget: 0.2}
listen: 127.0.0.1:2
models: {one: [a, a], chat: [a], chat: [b]}
`, `
3: retry.budget: this key is on line 3 already: want it once
4: listen: this key is on line 2 already: want it once
5: models.one[1]: "a" stands in this list already: want each name once
5: models.chat: this key is on line 5 already: want it once`},

	{"wrong kinds", `
listen: [127.0.0.1:8700]
admin: 127.0.0.1:8701
replicas: {url: http://h}
models: [chat]
default_class: 7
keys: {required: yes}
queue: {max_requests: "8", max_bytes: true, heartbeat: ~}
retry: {max_attempts: 2.5, budget: lots}
health: {interval: 2, timeout: soon}
log: {level: 3, decisions: 2026-01-01}
`, `
2: listen: a list is wrong here: want HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface
3: admin: the text "127.0.0.1:8701" is wrong here: want a mapping with the keys listen, token_env
4: replicas: a mapping is wrong here: want a list of mappings, one - for each
5: models: a list is wrong here: want a mapping of names to lists
6: default_class: "7" is wrong here: want a text, in quotes if this is meant
7: keys.required: the text "yes" is wrong here: want true or false
8: queue.max_requests: the text "8" is wrong here: want a whole number from 1 to 1000000
8: queue.max_bytes: "true" is not a size: want bytes, KiB, MiB or GiB, such as 64MiB
8: queue.heartbeat: an empty value is wrong here: want a duration above 0 and at most 1h, or off, such as 10s
9: retry.max_attempts: "2.5" is not a whole number: want a whole number from 1 to 100
9: retry.budget: the text "lots" is wrong here: want a number from 0 to 1
10: health.interval: "2" has no unit: want a duration such as 2s
10: health.timeout: "soon" is not a duration: want one such as 250ms, 10s, 1m30s or 2h
11: log.level: "3" is wrong here: want one of debug, info, warn, error, in quotes if this is meant
11: log.decisions: "2026-01-01" is wrong here: want a text, in quotes if this is meant`},

	{"numbers that are traps", `
queue: {max_requests: 010, max_bytes: 99999999999GiB}
retry: {budget: .inf, first_token_factor: 0x10, max_attempts: 1e1}
breaker: {window: 99999999999999999999, trial_factor: 1, failure_share: -0.1}
`, `
2: queue.max_requests: "010" is not a whole number: want a whole number from 1 to 1000000
2: queue.max_bytes: "99999999999GiB" is more than any memory: want bytes, KiB, MiB or GiB, such as 64MiB
3: retry.budget: ".inf" is not a number: want a number from 0 to 1
3: retry.first_token_factor: "0x10" is not a number: want a number from 1 to 1000
3: retry.max_attempts: "1e1" is not a whole number: want a whole number from 1 to 100
4: breaker.window: "99999999999999999999" is not a whole number: want a whole number from 1 to 10000
4: breaker.trial_factor: 1 is out of range: want a number above 1 and at most 1000
4: breaker.failure_share: -0.1 is out of range: want a number above 0 and at most 1`},

	{"words", `
admission: {mode: observ}
log: {level: trace}
queue: {heartbeat: 0s}
replicas: [{url: http://h, engine: llama.cpp, cache_tokens: 0}]
`, `
2: admission.mode: "observ" is not known: want one of enforce, observe (the nearest is observe)
3: log.level: "trace" is not known: want one of debug, info, warn, error
4: queue.heartbeat: 0 is out of range: want a duration above 0 and at most 1h, or off, such as 10s
5: replicas[0].engine: "llama.cpp" is not known: want one of auto, ollama, llamacpp, vllm, openai (the nearest is llamacpp)
5: replicas[0].cache_tokens: 0 is out of range: want a whole number from 1 to 1000000000, or auto`},

	{"URLs of replicas", `
replicas:
  - url: localhost:11434
  - url: http://me:hunter2@host
  - url: http://host/x?key=hunter2
  - url: http://host/a/../b
  - url: http://host:99999
  - url: "http://"
  - url: "http://host:"
  - name: no-url
  - name: a b
    url: http://ok
  - {url: http://plain, ca_file: ca.pem}
`, `
3: replicas[0].url: this has no scheme: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
4: replicas[1].url: a user name or password does not belong into the URL; api_key_env names a variable for it: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
5: replicas[2].url: a query or fragment does not belong into the URL: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
6: replicas[3].url: the path "/a/../b" goes up or nowhere: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
7: replicas[4].url: port "99999" is not a number from 1 to 65535: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
8: replicas[5].url: "" is no host name and no IP address: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
9: replicas[6].url: the port after the colon is missing: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
10: replicas[7].url: missing: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
11: replicas[8].name: "a b" is no replica name: want 1 to 128 letters, digits and . : _ @ [ ] -
13: replicas[9].ca_file: http://plain speaks plain HTTP: want https in the url, or no ca_file`},

	{"the same replica twice", `
replicas:
  - {name: a, url: "http://localhost:11434/v1"}
  - {name: b, url: "http://127.0.0.1:11434/"}
  - {name: c, url: "http://host"}
  - {name: d, url: "HTTP://HOST:80"}
  - {name: a, url: "http://other"}
  - {url: "http://gw:80/one"}
  - {url: "http://gw/two"}
`, `
4: replicas[1].url: the same as replicas[0].url (line 3): want each server once
6: replicas[3].url: the same as replicas[2].url (line 5): want each server once
7: replicas[4].name: the same as replicas[0].name (line 3): want a name of its own
9: replicas[6].name: the same as replicas[5].name (line 8): want a name of its own`},

	{"R17: the gateway's own address as a replica", `
listen: 0.0.0.0:8700
admin: {listen: "localhost:8701"}
replicas:
  - url: http://localhost:8700
  - url: http://127.0.0.5:8700/v1
  - url: http://[::1]:8701
  - url: http://0.0.0.0:8701/x
  - url: http://10.1.2.3:8700
`, `
5: replicas[0].url: http://localhost:8700 is this gateway's own address (listen: 0.0.0.0:8700): want the address of an inference server
6: replicas[1].url: http://127.0.0.5:8700 is this gateway's own address (listen: 0.0.0.0:8700): want the address of an inference server
7: replicas[2].url: http://[::1]:8701 is this gateway's own address (admin.listen: localhost:8701): want the address of an inference server
8: replicas[3].url: http://0.0.0.0:8701/x is this gateway's own address (admin.listen: localhost:8701): want the address of an inference server`},

	{"slots, models and GPUs", `
replicas:
  - {url: http://a, slots: {}, models: [], gpu: {}}
  - {url: http://b, slots: {a: 0, b: many}, models: [1, ok], gpu: {nvml: -1}}
  - {url: http://c, slots: "4", models: any, gpu: {exporter: host, gpus: 0}}
  - {url: http://d, slots: [4], models: ["*", a], gpu: {nvml: 0, exporter: "http://h/metrics"}}
  - {url: http://e, models: [a, a], gpu: {gpu: 0}}
  - {url: http://f, slots: {a: 1, a: 2}, gpu: nvml}
`, `
3: replicas[0].slots: a mapping is wrong here: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}
3: replicas[0].models: a list is wrong here: want auto, a list of names, or ["*"] for any name
3: replicas[0].gpu: a mapping is wrong here: want auto, none, {nvml: 0}, {nvml: "GPU-…"} or {exporter: "http://HOST:9400/metrics", gpu: 0}
4: replicas[1].slots.a: 0 is out of range: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}
4: replicas[1].slots.b: the text "many" is wrong here: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}
4: replicas[1].models[0]: "1" is wrong here: want a model's name, in quotes if it looks like something else
4: replicas[1].gpu.nvml: "-1" is no device: want its index such as 0, or its UUID such as "GPU-…"
5: replicas[2].slots: the text "4" is wrong here: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}
5: replicas[2].models: the text "any" is wrong here: want auto, a list of names, or ["*"] for any name
5: replicas[2].gpu.exporter: this is no URL of metrics: want one such as http://HOST:9400/metrics
5: replicas[2].gpu.gpus: unknown key: the nearest known key is gpu
6: replicas[3].slots: a list is wrong here: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}
6: replicas[3].models: "*" is any name already: want auto, a list of names, or ["*"] for any name
6: replicas[3].gpu: these keys do not go together: want auto, none, {nvml: 0}, {nvml: "GPU-…"} or {exporter: "http://HOST:9400/metrics", gpu: 0}
7: replicas[4].models[1]: "a" stands in this list already: want each name once
7: replicas[4].gpu: these keys do not go together: want auto, none, {nvml: 0}, {nvml: "GPU-…"} or {exporter: "http://HOST:9400/metrics", gpu: 0}
8: replicas[5].slots.a: this key is on line 8 already: want it once
8: replicas[5].gpu: the text "nvml" is wrong here: want auto, none, {nvml: 0}, {nvml: "GPU-…"} or {exporter: "http://HOST:9400/metrics", gpu: 0}`},

	{"classes", `
default_class: std
keys: {list: [{name: k, sha256: "0000000000000000000000000000000000000000000000000000000000000001", class: d}]}
classes:
  - {name: a, deadline: 10s, min_share: 0.6}
  - {name: b, deadline: 0s, min_share: 0.5}
  - {name: a, deadline: 1m}
  - {name: "c d", deadline: 1m}
  - {name: e}
  -
`, `
6: classes[1].deadline: 0s is out of range: want a duration above 0 and at most 24h, such as 10s
7: classes[2].name: the same as classes[0].name (line 5): want a name of its own
8: classes[3].name: "c d" is no class name: want 1 to 64 letters, digits and . _ -
9: classes[4].deadline: missing: want a duration above 0 and at most 24h, such as 10s
10: classes[5]: an empty value is wrong here: want a mapping with the keys name, deadline, min_share`},

	{"shares and references", `
classes:
  - {name: gold, deadline: 10s, min_share: 0.6}
  - {name: lead, deadline: 20s, min_share: 0.4}
keys:
  list:
    - {name: a, sha256: 0000000000000000000000000000000000000000000000000000000000000001, class: silver}
    - {name: b, sha256: "0000000000000000000000000000000000000000000000000000000000000002", max_class: silver}
`, `
2: default_class: no class is called "standard": want one of gold, lead
2: classes: the min_share of all classes add up to 1: want less than 1
7: keys.list[0].sha256: this is wrong here: want 64 lower-case hexadecimal digits, as ` + "`switchyard key new NAME`" + ` prints them, in quotes if this is meant
7: keys.list[0].class: no class is called "silver": want one of gold, lead
8: keys.list[1].max_class: no class is called "silver": want one of gold, lead`},

	{"R12: keys, whose secrets are never shown", `
keys:
  list:
    - {name: a, sha256: sw-hunter2}
    - {name: a, sha256: "000000000000000000000000000000000000000000000000000000000000000A"}
    - {name: other, sha256: "0000000000000000000000000000000000000000000000000000000000000001"}
    - {name: b, sha256: "0000000000000000000000000000000000000000000000000000000000000001", weight: -1, models: []}
    - {name: c, sha256: "0000000000000000000000000000000000000000000000000000000000000002", class: interactive, max_class: batch, max_queued: -1}
    - {sha256: 12345}
`, `
4: keys.list[0].sha256: this is no SHA-256: want 64 lower-case hexadecimal digits, as ` + "`switchyard key new NAME`" + ` prints them
5: keys.list[1].name: the same as keys.list[0].name (line 4): want a name of its own
5: keys.list[1].sha256: this is no SHA-256: want 64 lower-case hexadecimal digits, as ` + "`switchyard key new NAME`" + ` prints them
6: keys.list[2].name: "other" has a meaning of its own in metrics: want 1 to 64 letters, digits and . : _ @ -, other than anonymous and other
7: keys.list[3].sha256: the same as keys.list[2].sha256 (line 6): want a key of its own
7: keys.list[3].weight: -1 is out of range: want a number above 0 and at most 1000
7: keys.list[3].models: empty: want a list such as [a, b]
8: keys.list[4].class: interactive is more urgent than the key's max_class batch: want one that the key may use
8: keys.list[4].max_queued: -1 is out of range: want a whole number 0 or more
9: keys.list[5].name: missing: want 1 to 64 letters, digits and . : _ @ -, other than anonymous and other
9: keys.list[5].sha256: this is wrong here: want 64 lower-case hexadecimal digits, as ` + "`switchyard key new NAME`" + ` prints them`},

	{"listeners", `
listen: 8700
admin: {listen: ":8700", token_env: sw-hunter2}
tls: {key: key.pem}
`, `
2: listen: "8700" is wrong here: want HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface
3: admin.token_env: this is no variable name: want the name of an environment variable (letters, digits and _), never the secret itself
4: tls: one of cert and key is missing: want both, or none for plain HTTP`},

	{"an admin listener for everybody", `
listen: "127.0.0.1:8701"
admin: {listen: "[::]:8701"}
`, `
3: admin.listen: [::]:8701 is where the data plane listens, too: want another port
3: admin.listen: [::]:8701 is open to other machines and has no token: want admin.token_env, or a loopback address such as 127.0.0.1:8701`},

	{"aliases of models", `
models:
  chat: qwen3:8b
  empty: []
  none:
  "": [a]
  ok: [a, ""]
  alias: [b, other, own]
  own: [own, a]
  other: [c, d]
`, `
3: models.chat: the text "qwen3:8b" is wrong here: want a list such as [a, b]
4: models.empty: no candidates: want a list of models such as [qwen3:8b, qwen3:4b]
5: models.none: no candidates: want a list of models such as [qwen3:8b, qwen3:4b]
6: models."": "" is no model name: want 1 to 256 characters on one line
7: models.ok[1]: "" is no model name: want 1 to 256 characters on one line`},

	{"pairs", `
breaker: {cooldown: 5m}
cors: {origins: ["*", "https://a", "https://a/path", ""]}
affinity: {session_header: "X Session"}
`, `
2: breaker.cooldown: cooldown is longer than max_cooldown: want at most max_cooldown, 2m
3: cors.origins: "*" lets every page in already: want it alone, or the pages that may call
3: cors.origins[2]: "https://a/path" is not an origin: want SCHEME://HOST or SCHEME://HOST:PORT as browsers send it, or "*"
3: cors.origins[3]: "" is not an origin: want SCHEME://HOST or SCHEME://HOST:PORT as browsers send it, or "*"
4: affinity.session_header: "X Session" is no header name: want one such as X-Session-ID`},

	{"a pair of which one is given", "breaker: {max_cooldown: 1s}\n", `
1: breaker.max_cooldown: cooldown is longer than max_cooldown: want at least cooldown, 5s`},

	{"addresses and origins", `
listen: 127.0.0.1
admin: {listen: "local host:1"}
cors: {origins: ["http://h:99999"]}
replicas: [{url: "http://h%"}, {url: "http://a!b"}]
`, `
2: listen: "127.0.0.1" is not an address: want HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface
3: admin.listen: "local host" is no host name and no IP address: want HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface
4: cors.origins[0]: port "99999" is not a number from 1 to 65535: want SCHEME://HOST or SCHEME://HOST:PORT as browsers send it, or "*"
5: replicas[0].url: this is not a URL: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one
5: replicas[1].url: "a!b" is no host name and no IP address: want http://HOST:PORT or https://HOST:PORT, with a path where the server has one`},

	{"what YAML can do and we do not", `
base: &base {url: http://h}
replicas:
  - *base
  - {<<: *base}
  - {[a]: b}
  - !!binary aGk=
`, `
2: base: unknown key: the nearest known key is tls, of listen, admin, tls, replicas, models, classes, default_class, keys, queue, admission, retry, breaker, health, affinity, limits, cors, log
4: replicas[0]: anchors and aliases are not read here: want the value itself
5: replicas[1]: merge keys (<<) are not read here: want the keys themselves
6: replicas[2]: a list as a key: want a name
7: replicas[3]: a value tagged !!binary is wrong here: want a mapping with the keys name, url, engine, slots, models, tier, api_key_env, ca_file, cache_tokens, gpu`},

	{"a list", "- a\n", `
1: a list is wrong here: want a mapping with the keys listen, admin, tls, replicas, models, classes, default_class, keys, queue, admission, retry, breaker, health, affinity, limits, cors, log`},
	{"a text", "hello\n", `
1: the text "hello" is wrong here: want a mapping with the keys listen, admin, tls, replicas, models, classes, default_class, keys, queue, admission, retry, breaker, health, affinity, limits, cors, log`},
	{"two documents", "listen: :1\n---\nlisten: :2\n", "\n2: a second document begins: want one"},
	{"a tab", "queue:\n\tmax_requests: 1\n", "\n2: this is not YAML: found character that cannot start any token while scanning for the next token"},
	{"an open bracket", "cors: {origins: [\n", "\n2: this is not YAML: did not find expected node content while parsing a flow node"},
	{"an unknown anchor", "listen: *x\n", "\n1: this is not YAML: unknown anchor 'x' referenced"},
	{"not UTF-8", "listen: :1\nlog: \xff\n", "\n2: bytes that are not UTF-8: want a text in UTF-8"},
}

func TestWrongFiles(t *testing.T) {
	for _, c := range wrong {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse("f.yaml", []byte(c.file))
			require.Error(t, err)
			require.Nil(t, got)
			want := strings.ReplaceAll(c.want, "\n", "\nf.yaml:")
			require.Equal(t, want, "\n"+err.Error())
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

// A problem can be taken apart by programs.
func TestProblemsHavePlaces(t *testing.T) {
	_, err := Parse("f.yaml", []byte("queue: {max_requests: 0}\n"))
	p, ok := errors.AsType[*Problem](err)
	require.True(t, ok)
	require.Equal(t, &Problem{File: "f.yaml", Line: 1, Column: 23, Key: "queue.max_requests", Msg: "0 is out of range: want a whole number from 1 to 1000000"}, p)
}

// Code that builds a configuration gets the same checks.
func TestValidateChecksWhatCodeHasBuilt(t *testing.T) {
	c := Default()
	c.Replicas = []Replica{{URL: "http://h/v1/", Slots: Slots{"a": 0, "": 1}}}
	c.Retry.MaxAttempts = 0
	require.EqualError(t, c.Validate(), `replicas[0].engine: "" is not known: want one of auto, ollama, llamacpp, vllm, openai`+"\n"+
		`replicas[0].slots: "" is no model name: want 1 to 256 characters on one line`+"\n"+
		`replicas[0].slots: 0 is out of range: want auto, a whole number from 1 to 4096, or {MODEL: N, "*": N}`+"\n"+
		`retry.max_attempts: 0 is out of range: want a whole number from 1 to 100`)
	require.Equal(t, "http://h", c.Replicas[0].URL)
	require.Equal(t, "h:80", c.Replicas[0].Name)
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"abc", "abc", 0},
		{"abc", "", 3},
		{"", "ab", 2},
		{"slots", "sltos", 1},
		{"slots", "slot", 1},
		{"kitten", "sitting", 3},
		{"ca", "abc", 3},
	} {
		require.Equal(t, c.want, edits(c.a, c.b), "%s %s", c.a, c.b)
		require.Equal(t, c.want, edits(c.b, c.a), "%s %s", c.b, c.a)
	}
	require.Equal(t, 70, edits(strings.Repeat("a", 70), "a"))
}
