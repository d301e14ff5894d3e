package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// R15: what a reload changes, and what it cannot.
func TestReload(t *testing.T) {
	const running = `
listen: 127.0.0.1:1
replicas:
  - {name: a, url: "http://a", slots: 2}
  - {name: b, url: "http://b"}
  - {name: c, url: "http://c", models: [x]}
models: {chat: [x]}
classes: [{name: gold, deadline: 10s}, {name: lead, deadline: 60s}]
default_class: gold
keys:
  list:
    - {name: k, sha256: "0000000000000000000000000000000000000000000000000000000000000001"}
`
	for _, c := range []struct {
		name, file string
		want       Diff
		text       string
	}{
		{"nothing", running, Diff{}, "nothing changed"},
		{"only its layout", "# new\n" + running, Diff{}, "nothing changed"},
		{"everything", `
listen: 127.0.0.1:2
admin: {listen: "127.0.0.1:3", token_env: T}
tls: {cert: c, key: k}
replicas:
  - {name: c, url: "http://c2", models: [x, y], slots: 4}
  - {name: d, url: "http://d"}
  - {name: a, url: "http://a", slots: 2}
models: {chat: [x, y]}
classes: [{name: lead, deadline: 30s}, {name: gold, deadline: 10s}, {name: tin, deadline: 5m}]
default_class: lead
keys:
  required: true
  list:
    - {name: k, sha256: "0000000000000000000000000000000000000000000000000000000000000002"}
    - {name: l, sha256: "0000000000000000000000000000000000000000000000000000000000000003"}
limits: {max_body: 1MiB, read_header_timeout: 1s}
queue: {heartbeat: 15s}
cors: {origins: ["*"]}
log: {level: debug, format: json, decisions: d}
`, Diff{
			Replicas: Named{Added: []string{"d"}, Removed: []string{"b"}, Changed: []NamedChange{{"c", []string{"url", "slots", "models"}}}, Moved: true},
			Classes:  Named{Added: []string{"tin"}, Changed: []NamedChange{{"lead", []string{"deadline", "min_share"}}, {"gold", []string{"min_share"}}}, Moved: true},
			Keys:     Named{Added: []string{"l"}, Changed: []NamedChange{{"k", []string{"sha256"}}}},
			Settings: []string{"models", "default_class", "keys.required", "queue.heartbeat", "limits.max_body", "cors.origins"},
			Restart:  []string{"listen", "admin.listen", "admin.token_env", "tls.cert", "tls.key", "limits.read_header_timeout", "log.level", "log.format", "log.decisions"},
		}, "replica d added; replica b removed; replica c changed (url, slots, models); " +
			"class tin added; class lead changed (deadline, min_share); class gold changed (min_share); classes in another order; " +
			"key l added; key k changed (sha256); " +
			"models changed; default_class changed; keys.required changed; queue.heartbeat changed; limits.max_body changed; cors.origins changed"},
		{"back to the default", "", Diff{
			Replicas: Named{Removed: []string{"a", "b", "c"}},
			Classes:  Named{Added: []string{"interactive", "standard", "batch"}, Removed: []string{"gold", "lead"}},
			Keys:     Named{Removed: []string{"k"}},
			Settings: []string{"models", "default_class"},
			Restart:  []string{"listen"},
		}, "replica a removed; replica b removed; replica c removed; class interactive added; class standard added; class batch added; " +
			"class gold removed; class lead removed; key k removed; models changed; default_class changed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, file := parse(t, running), parse(t, c.file)
			next, diff := Reload(old, file)
			require.Equal(t, c.want, diff)
			require.Equal(t, c.text, diff.String())
			require.Equal(t, c.name == "nothing" || c.name == "only its layout", diff.Empty())

			// What goes on runs with the file's settings but for those of Restart,
			// which the next reload names again.
			again := Changes(next, file)
			require.Equal(t, Diff{Restart: c.want.Restart}, again)
			require.Equal(t, "127.0.0.1:1", next.Listen)
			require.Equal(t, file.Replicas, next.Replicas)
		})
	}
}

// R15: a wrong file never comes as far as a reload.
func TestWrongFileGivesNoConfiguration(t *testing.T) {
	c, err := Parse("f.yaml", []byte("replicas: [{url: 'http://a'}]\nlisten: x\n"))
	require.Nil(t, c)
	require.EqualError(t, err, `f.yaml:2: listen: "x" is not an address: want HOST:PORT such as 127.0.0.1:8700, or :8700 for every interface`)
}

func TestWarnings(t *testing.T) {
	require.Equal(t, []string{
		"listen :8700 is open to other machines and keys.required is false: anybody who reaches it can use the replicas",
		"queue.max_bytes 1MiB is below limits.max_body 64MiB: a body between the two can never be queued",
		"health.interval 500ms is below 2s: a llama.cpp that is probed that often does not notice clients who left",
	}, parse(t, "listen: ':8700'\nqueue: {max_bytes: 1MiB}\nhealth: {interval: 500ms}\n").Warnings())
	require.Equal(t, []string{
		"keys.required is true and keys.list has no key: every request will be refused (`switchyard key new NAME` makes a key)",
	}, parse(t, "listen: ':8700'\nkeys: {required: true}\n").Warnings())
	require.Equal(t, []string{
		`models.alias[1]: "other" is itself an alias here, and candidates are asked for as they stand: it must be a model of that name, else name c, d`,
	}, parse(t, "models: {alias: [b, other, own], own: [own, a], other: [c, d]}\n").Warnings())
}
