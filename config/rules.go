package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// rules are the checks that need more than one key. Each leaves alone what is
// known to be wrong already, so those that read a key without blaming it come
// before those that may.
var rules = []func(*Config, *report){
	replicasDiffer,
	notItself,
	listenersGuarded,
	tlsWhole,
	caForHTTPS,
	defaultClassExists,
	keyClassesExist,
	classesDiffer,
	keysDiffer,
	sharesLeaveRoom,
	cooldownsInOrder,
	starAlone,
}

// unique reports the second use of a text that must be used once. used maps
// the text to the path of its first use.
func (r *report) unique(used map[string]string, path, text, right string) {
	if text == "" || !r.ok(path) {
		return
	}
	if first, again := used[text]; again {
		at := ""
		if line := r.marks.of(first).line; line > 0 {
			at = fmt.Sprintf(" (line %d)", line)
		}
		r.add(path, "the same as %s%s: want %s", first, at, right)
		return
	}
	used[text] = path
}

func replicasDiffer(c *Config, r *report) {
	names, urls := map[string]string{}, map[string]string{}
	for i, x := range c.Replicas {
		at := fmt.Sprintf("replicas[%d]", i)
		r.unique(urls, at+".url", sameServer(x.URL), "each server once")
		if r.ok(at + ".url") {
			r.unique(names, at+".name", x.Name, "a name of its own")
		}
	}
}

// sameServer is a form of a base URL that two spellings of one server share.
func sameServer(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return ""
	}
	host, port, _ := net.SplitHostPort(hostPort(base))
	if host == "localhost" {
		host = "127.0.0.1"
	}
	return u.Scheme + "://" + net.JoinHostPort(host, port) + u.EscapedPath()
}

func listenersGuarded(c *Config, r *report) {
	if !r.ok("listen") || !r.ok("admin") {
		return
	}
	if sameSocket(c.Listen, c.Admin.Listen) {
		r.add("admin.listen", "%s is where the data plane listens, too: want another port", c.Admin.Listen)
	}
	if !loopback(c.Admin.Listen) && c.Admin.TokenEnv == "" {
		r.add("admin.listen", "%s is open to other machines and has no token: want admin.token_env, or a loopback address such as 127.0.0.1:8701", c.Admin.Listen)
	}
}

// notItself keeps the gateway from sending requests to itself (R17).
func notItself(c *Config, r *report) {
	for i, x := range c.Replicas {
		at := fmt.Sprintf("replicas[%d].url", i)
		if !r.ok(at) || x.URL == "" {
			continue
		}
		for _, own := range []struct{ key, address string }{{"listen", c.Listen}, {"admin.listen", c.Admin.Listen}} {
			if r.ok(own.key) && sameSocket(own.address, hostPort(x.URL)) {
				r.add(at, "%s is this gateway's own address (%s: %s): want the address of an inference server", x.URL, own.key, own.address)
				break
			}
		}
	}
}

// sameSocket reports whether who connects to b would reach what listens on a,
// as far as can be told without looking names up or at network interfaces.
func sameSocket(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	if hostA == hostB {
		return true
	}
	everyA, localA := reach(hostA)
	everyB, localB := reach(hostB)
	switch {
	case everyA && everyB:
		return true
	case everyA:
		return len(localB) > 0
	case everyB:
		return len(localA) > 0
	}
	return slices.ContainsFunc(localA, func(ip netip.Addr) bool { return slices.Contains(localB, ip) })
}

// reach says whether a host stands for every address of this machine, and else
// which loopback addresses it stands for.
func reach(host string) (every bool, loopback []netip.Addr) {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	switch ip, err := netip.ParseAddr(host); {
	case host == "":
		return true, nil
	case strings.TrimSuffix(host, ".") == "localhost":
		return false, []netip.Addr{v4, v6}
	case err != nil:
		return false, nil
	case ip.Unmap().IsUnspecified():
		return true, nil
	case ip.Unmap().IsLoopback():
		return false, []netip.Addr{ip.Unmap()}
	}
	return false, nil
}

// loopback reports whether an address to listen on is closed to other machines.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, local := reach(host)
	return len(local) > 0
}

func tlsWhole(c *Config, r *report) {
	if (c.TLS.Cert == "") != (c.TLS.Key == "") && r.ok("tls") {
		r.add("tls", "one of cert and key is missing: want both, or none for plain HTTP")
	}
}

func caForHTTPS(c *Config, r *report) {
	for i, x := range c.Replicas {
		at := fmt.Sprintf("replicas[%d]", i)
		if x.CAFile != "" && strings.HasPrefix(x.URL, "http:") && r.ok(at) {
			r.add(at+".ca_file", "%s speaks plain HTTP: want https in the url, or no ca_file", x.URL)
		}
	}
}

func classesDiffer(c *Config, r *report) {
	names := map[string]string{}
	for i, x := range c.Classes {
		r.unique(names, fmt.Sprintf("classes[%d].name", i), x.Name, "a name of its own")
	}
}

func defaultClassExists(c *Config, r *report) {
	if c.DefaultClass != "" {
		c.classExists(r, "default_class", c.DefaultClass)
	}
}

// classExists checks a reference to a class, and gives its place in the order.
// It says nothing while a class has no good name: that may be the one.
func (c *Config) classExists(r *report, path, name string) (int, bool) {
	var names []string
	sure := r.ok(path) && !r.exact["classes"]
	for i, x := range c.Classes {
		if x.Name == name {
			return i, true
		}
		names = append(names, x.Name)
		at := fmt.Sprintf("classes[%d]", i)
		sure = sure && !r.exact[at] && r.ok(at+".name")
	}
	if !sure {
		return 0, false
	}
	at := r.marks.of(path)
	if !r.marks.has(path) && r.marks.has("classes") {
		at = r.marks["classes"] // a default that the file's own classes lack
	}
	r.addAt(at, path, fmt.Sprintf("no class is called %s: want one of %s", quote(name), strings.Join(names, ", ")))
	return 0, false
}

func sharesLeaveRoom(c *Config, r *report) {
	sum := 0.0
	for _, x := range c.Classes {
		sum += x.MinShare
	}
	if sum > 1-1e-9 && r.ok("classes") {
		r.add("classes", "the min_share of all classes add up to %.4g: want less than 1", sum)
	}
}

func keysDiffer(c *Config, r *report) {
	names, hashes := map[string]string{}, map[string]string{}
	for i, x := range c.Keys.List {
		at := fmt.Sprintf("keys.list[%d]", i)
		r.unique(names, at+".name", x.Name, "a name of its own")
		r.unique(hashes, at+".sha256", x.SHA256, "a key of its own")
	}
}

func keyClassesExist(c *Config, r *report) {
	for i, x := range c.Keys.List {
		at := fmt.Sprintf("keys.list[%d]", i)
		class, most := -1, -1
		if x.Class != "" {
			if n, ok := c.classExists(r, at+".class", x.Class); ok {
				class = n
			}
		}
		if x.MaxClass != "" {
			if n, ok := c.classExists(r, at+".max_class", x.MaxClass); ok {
				most = n
			}
		}
		if class >= 0 && class < most {
			r.add(at+".class", "%s is more urgent than the key's max_class %s: want one that the key may use", x.Class, x.MaxClass)
		}
	}
}

func cooldownsInOrder(c *Config, r *report) {
	if b := c.Breaker; b.Cooldown > b.MaxCooldown && r.ok("breaker") {
		at, right := "breaker.cooldown", "at most max_cooldown, "+FormatDuration(b.MaxCooldown)
		if !r.marks.has(at) && r.marks.has("breaker.max_cooldown") {
			at, right = "breaker.max_cooldown", "at least cooldown, "+FormatDuration(b.Cooldown)
		}
		r.add(at, "cooldown is longer than max_cooldown: want %s", right)
	}
}

func starAlone(c *Config, r *report) {
	if len(c.CORS.Origins) > 1 && slices.Contains(c.CORS.Origins, "*") {
		r.add("cors.origins", `"*" lets every page in already: want it alone, or the pages that may call`)
	}
}
