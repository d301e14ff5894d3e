package gateway

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"switchyard/admission"
)

// wish builds headers from "Name: value" lines.
func wish(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		h.Add(name, value)
	}
	return h
}

func viewOf(change func(*Settings)) *view {
	s := Settings{}
	if change != nil {
		change(&s)
	}
	return newView(s, nil)
}

// TestClassPrecedence: X-Switchyard-Class, then Priority, then service_tier,
// then the key's class, then the default; never above the key's max_class.
func TestClassPrecedence(t *testing.T) {
	batchKey := &Key{Name: "b", Class: "batch"}
	capped := &Key{Name: "c", Class: "interactive", MaxClass: "standard"}
	for _, tc := range []struct {
		name    string
		headers http.Header
		tier    string
		key     *Key
		want    string
	}{
		{"nothing said", wish(), "", nil, "standard"},
		{"the key's class", wish(), "", batchKey, "batch"},
		{"service_tier priority", wish(), "priority", batchKey, "interactive"},
		{"service_tier flex", wish(), "flex", nil, "batch"},
		{"service_tier default", wish(), "default", batchKey, "standard"},
		{"service_tier auto", wish(), "auto", batchKey, "standard"},
		{"service_tier unknown is not read", wish(), "scale", batchKey, "batch"},
		{"Priority u=0", wish("Priority: u=0"), "flex", nil, "interactive"},
		{"Priority u=1", wish("Priority: u=1, i"), "flex", nil, "interactive"},
		{"Priority u=2", wish("Priority: u=2"), "flex", batchKey, "standard"},
		{"Priority u=4", wish("Priority: u=4"), "priority", nil, "standard"},
		{"Priority u=5", wish("Priority: u=5"), "priority", nil, "batch"},
		{"Priority u=7", wish("Priority: u=7"), "priority", nil, "batch"},
		{"malformed Priority is ignored", wish("Priority: u=9"), "flex", nil, "batch"},
		{"Priority without u", wish("Priority: i"), "flex", nil, "batch"},
		{"our header over Priority", wish("X-Switchyard-Class: batch", "Priority: u=0"), "priority", nil, "batch"},
		{"clamped from the header", wish("X-Switchyard-Class: interactive"), "", capped, "standard"},
		{"clamped from Priority", wish("Priority: u=0"), "", capped, "standard"},
		{"clamped from service_tier", wish(), "priority", capped, "standard"},
		{"clamped from the key itself", wish(), "", capped, "standard"},
		{"below max_class stays", wish("X-Switchyard-Class: batch"), "", capped, "batch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := viewOf(nil)
			byHeader, d := v.headerClass(tc.headers)
			require.Nil(t, d)
			require.Equal(t, tc.want, v.class(byHeader, tc.tier, tc.key))
		})
	}
}

// TestUnknownClassR17: a malformed header of ours is the client's mistake, and
// the answer says what would be right.
func TestUnknownClassR17(t *testing.T) {
	for _, name := range []string{"urgent", "", "Interactive"} {
		_, d := viewOf(nil).headerClass(wish("X-Switchyard-Class: " + name))
		require.NotNil(t, d, name)
		require.Equal(t, admission.ReasonBadRequest, d.Reason)
		require.Contains(t, d.Message, "interactive, standard, batch")
	}
}

// TestDeadlinePrecedence: X-Switchyard-Deadline, then Prefer: wait, then the
// SDK's timeouts where shorter than the class's deadline, then the class's.
func TestDeadlinePrecedence(t *testing.T) {
	for _, tc := range []struct {
		name    string
		headers http.Header
		want    time.Duration
		stated  bool
	}{
		{"the class's", wish(), time.Minute, false},
		{"ours, a duration", wish("X-Switchyard-Deadline: 8s"), 8 * time.Second, true},
		{"ours, seconds", wish("X-Switchyard-Deadline: 8"), 8 * time.Second, true},
		{"ours, part of a second", wish("X-Switchyard-Deadline: 0.25"), 250 * time.Millisecond, true},
		{"ours, longer than the class's", wish("X-Switchyard-Deadline: 5m"), 5 * time.Minute, true},
		{"ours first", wish("X-Switchyard-Deadline: 8s", "Prefer: wait=3", "X-Stainless-Timeout: 2"), 8 * time.Second, true},
		{"beyond limits.max_deadline", wish("X-Switchyard-Deadline: 24h"), 30 * time.Minute, false},
		{"far beyond it", wish("X-Switchyard-Deadline: 99999999999999999999"), 30 * time.Minute, false},
		{"Prefer", wish("Prefer: respond-async, wait=30"), 30 * time.Second, true},
		{"Prefer in capitals, spaced and quoted", wish("Prefer: foo; bar=1", `Prefer: WAIT = "30"; x`), 30 * time.Second, true},
		{"Prefer over the SDK's", wish("Prefer: wait=30", "X-Stainless-Read-Timeout: 5"), 30 * time.Second, true},
		{"the first wait counts", wish("Prefer: wait=30, wait=5"), 30 * time.Second, true},
		{"malformed Prefer is ignored", wish("Prefer: wait=soon"), time.Minute, false},
		{"negative Prefer is ignored", wish("Prefer: wait=-3"), time.Minute, false},
		{"Prefer of no wait at all is ignored", wish("Prefer: wait=0"), time.Minute, false},
		{"the SDK's, shorter", wish("X-Stainless-Read-Timeout: 5"), 5 * time.Second, true},
		{"the SDK's, the other name", wish("X-Stainless-Timeout: 5"), 5 * time.Second, true},
		{"read timeout first", wish("X-Stainless-Timeout: 5", "X-Stainless-Read-Timeout: 7"), 7 * time.Second, true},
		{"the SDK's default is longer than the class's", wish("X-Stainless-Read-Timeout: 600"), time.Minute, false},
		{"a malformed one of the SDK's", wish("X-Stainless-Timeout: NOT_GIVEN"), time.Minute, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := viewOf(nil)
			p, d := v.headerDeadline(tc.headers)
			require.Nil(t, d)
			at := time.Unix(1000, 0)
			due, stated := v.due(at, p, "standard")
			require.Equal(t, tc.want, due.Sub(at))
			require.Equal(t, tc.stated, stated)
		})
	}
}

func TestMalformedDeadlineR17(t *testing.T) {
	for _, s := range []string{"", " ", "soon", "0", "-5s", "-1", "0s", "8 s", "1e3", "0x10", "NaN", "Inf", "5,5", "1.2.3", "8sec"} {
		_, d := viewOf(nil).headerDeadline(wish("X-Switchyard-Deadline: " + s))
		require.NotNil(t, d, s)
		require.Equal(t, admission.ReasonBadRequest, d.Reason)
		require.Equal(t, "X-Switchyard-Deadline", d.param)
	}
}

// TestKeysR12: a key is known by its hash, from either header, and unknown
// ones are nobody's.
func TestKeysR12(t *testing.T) {
	v := viewOf(func(s *Settings) {
		s.Keys = []Key{
			{Name: "a", Hash: sha256.Sum256([]byte("key-a"))},
			{Name: "b", Hash: sha256.Sum256([]byte("key-b"))},
		}
	})
	for _, tc := range []struct {
		headers http.Header
		want    string
	}{
		{wish(), ""},
		{wish("Authorization: Bearer key-a"), "a"},
		{wish("Authorization: bearer  key-b "), "b"},
		{wish("X-Api-Key: key-b"), "b"},
		{wish("Authorization: Bearer sk-none", "X-Api-Key: key-a"), "a"},
		{wish("Authorization: Bearer key-a", "X-Api-Key: key-b"), "a"},
		{wish("Authorization: Basic key-a"), ""},
		{wish("Authorization: Bearer"), ""},
		{wish("Authorization: key-a"), ""},
		{wish("Authorization: Bearer key-A"), ""},
	} {
		k := v.findKey(tc.headers)
		if tc.want == "" {
			require.Nil(t, k, "%v", tc.headers)
			continue
		}
		require.NotNil(t, k, "%v", tc.headers)
		require.Equal(t, tc.want, k.Name)
	}
}

func TestKeyModels(t *testing.T) {
	k := &Key{Models: []string{"qwen3", "phi:mini"}}
	require.True(t, k.mayUse("qwen3"))
	require.True(t, k.mayUse("qwen3:latest"))
	require.True(t, k.mayUse("phi:mini"))
	require.False(t, k.mayUse("phi"))
	require.True(t, (&Key{Models: []string{"*"}}).mayUse("anything"))
	require.True(t, (&Key{}).mayUse("anything"))
	require.True(t, (*Key)(nil).mayUse("anything"))
}

func TestLoopR17(t *testing.T) {
	v := viewOf(func(s *Settings) { s.Instance = "x1" })
	for via, want := range map[string]bool{
		"":                                 false,
		"1.1 other":                        false,
		"1.1 switchyard-x2":                false,
		"1.1 switchyard-x1":                true,
		"1.0 fred, 1.1 Switchyard-X1 (hm)": true,
		"HTTP/1.1 switchyard-x1":           true,
		"switchyard-x1":                    false,
	} {
		require.Equal(t, want, v.looped(wish("Via: "+via)), via)
	}
}

func TestRequestIDs(t *testing.T) {
	require.Equal(t, "abc-1.2:3", requestID(wish("X-Request-ID: abc-1.2:3")))
	for _, odd := range []string{"", "a b", "a/b", "ü", strings.Repeat("x", 129), "a\"b"} {
		id := requestID(wish("X-Request-ID: " + odd))
		require.Len(t, id, 32, odd)
		require.True(t, saneID(id))
	}
	require.NotEqual(t, requestID(nil), requestID(nil))
}

func TestUrgency(t *testing.T) {
	for field, want := range map[string]int{
		"u=0": 0, "u=7": 7, "u=3, i": 3, "i, u=5": 5, "i=?0,u=2": 2, "u=1;x=y": 1, " u=4 ": 4,
		"u=1, u=6": 6, "x=(a b;c=1 \"q\\\"\");d, u=2": 2, "x=:aGk=:, u=2": 2, "x=-1.125, u=2": 2, "*k=t/o:k, u=2": 2,
		"u=1 ,\ti": 1, "u=2,i,x": 2,
	} {
		u, ok := urgency([]string{field})
		require.True(t, ok, field)
		require.Equal(t, want, u, field)
	}
	for _, field := range []string{
		"", "u", "u=8", "u=-1", "u=3.0", "u=03", "u=\"3\"", "U=3", "u = 3", "u=3,", "u=3,,i", "u=3;", "u=3 i", "u=3, x=\"open",
		"u=3, x=(a", "u=3, x=:a", "u=3, x=?2", "u=3, x=1.", "u=3, x=1234567890123456", "u=3, x=ü", "u=?1", "u=(3)", "u=3;=x", "1=u",
		"u=1, u=9", "u=3, x=(\"a\"\"b\")",
	} {
		_, ok := urgency([]string{field})
		require.False(t, ok, field)
	}
	u, ok := urgency([]string{"i", "u=2"})
	require.True(t, ok)
	require.Equal(t, 2, u)
}

func FuzzPriority(f *testing.F) {
	f.Add("u=3, i")
	f.Add(`x=(a "b\"" :aa==:);p=?1, u=7`)
	f.Fuzz(func(t *testing.T, s string) {
		if u, ok := urgency([]string{s}); ok && (u < 0 || u > 7) {
			t.Fatalf("urgency(%q) = %d", s, u)
		}
	})
}

func FuzzDeadlines(f *testing.F) {
	f.Add("8s", "wait=3")
	f.Add("1.5", `foo;x, wait="7"; y`)
	v := viewOf(nil)
	f.Fuzz(func(t *testing.T, ours, prefer string) {
		h := http.Header{"X-Switchyard-Deadline": {ours}, "Prefer": {prefer}}
		p, d := v.headerDeadline(h)
		if d == nil && (p.wait < 0 || p.wait > v.Limits.MaxDeadline) {
			t.Fatalf("%q, %q: %s", ours, prefer, p.wait)
		}
	})
}

func TestSecretsNeverPrint(t *testing.T) {
	s := struct{ K Secret }{"hunter2"}
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", s, s, s, s.K), "hunter2")
}

func TestVersionsCompare(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"0.6.5", "0.17.4", -1},
		{"0.33.0-rc2", "0.33.0", -1},
		{"0.33.0-rc2", "0.33.0-rc1", 1},
		{"v1.0.0", "1.0.0", 0},
		{"0.33.0", "0.33.0-rc2", 1},
		{"1.2", "1.2.1", -1},
	} {
		require.Equal(t, tc.want, compareVersions(tc.a, tc.b), "%s %s", tc.a, tc.b)
	}
}

func TestStoredIDsAreBounded(t *testing.T) {
	s := newStored(2)
	s.put("r1", "gpu0", "a")
	s.put("r2", "gpu1", "a")
	_, ok := s.find("r1", "a") // now the one used last
	require.True(t, ok)
	s.put("r3", "gpu0", "a")
	_, ok = s.find("r2", "a")
	require.False(t, ok)
	name, ok := s.find("r1", "a")
	require.True(t, ok)
	require.Equal(t, "gpu0", name)
	_, ok = s.find("r1", "b")
	require.False(t, ok, "another key's response")
	s.forget("r1")
	_, ok = s.find("r1", "a")
	require.False(t, ok)
	s.put("", "gpu0", "a")
	_, ok = s.find("", "a")
	require.False(t, ok)
}
