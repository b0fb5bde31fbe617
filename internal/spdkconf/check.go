package spdkconf

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/strictjson"
)

const (
	// nvmePort is the one that spdk-csi uses for all targets.
	nvmePort = 4420
	// maxStoreName is that of an SPDK lvol store.
	maxStoreName = 63
)

var (
	targetName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	storeName  = regexp.MustCompile(`^[!-.0-~]+$`) // printable ASCII without a slash
	lvolUUID   = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	// uncleanToken is of engine/spdk.
	uncleanToken = regexp.MustCompile(`^unclean-[a-z2-7]{8}$`)
	labelKey     = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelValue   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

// target checks an entry; at is its path in messages.
func (e entry) target(at string) (t Target, problems []strictjson.Problem) {
	fail := func(field string, err error) {
		if err != nil {
			problems = append(problems, problem(at+"."+field, "%s", err))
		}
	}
	var err error
	t.Name = e.Name
	if !targetName.MatchString(e.Name) {
		fail("name", fmt.Errorf("%s cannot be part of a volume id; want at most 63 letters, digits, - _ and ., and a letter or digit first", errs.Quote(e.Name)))
	}
	if t.Retired = e.Retired; t.Retired {
		return t, problems // the other keys can stay
	}
	t.Socket, t.URL, err = parseRPCURL(e.RPCURL)
	fail("rpcURL", err)
	t.Transport, err = parseTargetType(e.TargetType)
	fail("targetType", err)
	switch {
	case e.TargetAddr != "" && len(e.Addresses) > 0:
		fail("targetAddr", fmt.Errorf("%s is given, and addresses too; want one of both", errs.Quote(e.TargetAddr)))
	case e.TargetAddr != "":
		a, err := parseAddr(e.TargetAddr)
		fail("targetAddr", err)
		t.Addresses = []netip.AddrPort{netip.AddrPortFrom(a, nvmePort)}
	case len(e.Addresses) == 0:
		fail("addresses", fmt.Errorf("they are missing; want at least one such as 192.0.2.1:4420, or targetAddr"))
	}
	for i, s := range slices.Concat(e.Addresses, e.TLS) {
		field, into := fmt.Sprintf("addresses[%d]", i), &t.Addresses
		if at := i - len(e.Addresses); at >= 0 {
			field, into = fmt.Sprintf("tlsAddresses[%d]", at), &t.TLSAddresses
		}
		a, err := parseEndpoint(s)
		if err == nil && slices.Contains(slices.Concat(t.Addresses, t.TLSAddresses), a) {
			err = fmt.Errorf("%s is given twice", a)
		}
		fail(field, err)
		*into = append(*into, a)
	}
	if len(e.TLS) > 0 && t.Transport == "rdma" {
		fail("tlsAddresses", fmt.Errorf("only nvme-tcp has TLS"))
	}
	for i, s := range e.Stores {
		if len(s) > maxStoreName || !storeName.MatchString(s) || slices.Contains(t.Stores, s) {
			fail(fmt.Sprintf("lvolStores[%d]", i), fmt.Errorf("%s is given twice, or is not the name of an lvol store: at most %d printable characters without / and spaces", errs.Quote(s), maxStoreName))
		}
		t.Stores = append(t.Stores, s)
	}
	for i, s := range e.Forget {
		if !lvolUUID.MatchString(s) || slices.Contains(t.Forget, s) {
			fail(fmt.Sprintf("forget[%d]", i), fmt.Errorf("%s is given twice, or is not the UUID of an lvol, such as 0c5b9f0e-8b7a-4d52-9d1e-3a1f2b3c4d5e", errs.Quote(s)))
		}
		t.Forget = append(t.Forget, s)
	}
	for i, s := range e.Cleared {
		if !uncleanToken.MatchString(s) || slices.Contains(t.Cleared, s) {
			fail(fmt.Sprintf("cleared[%d]", i), fmt.Errorf("%s is given twice, or is not what an error or condition names, such as unclean-abcd2345", errs.Quote(s)))
		}
		t.Cleared = append(t.Cleared, s)
	}
	fail("topology", checkTopology(e.Topology))
	t.Topology = e.Topology
	return t, problems
}

// parseRPCURL does not print a URL that can have a password in it.
func parseRPCURL(s string) (socket, address string, err error) {
	const want = "want unix:///var/tmp/spdk.sock, or http://192.0.2.1:9009 of SPDK's rpc_http_proxy.py"
	if s == "" {
		return "", "", fmt.Errorf("it is missing; %s", want)
	}
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' }) {
			return "", "", fmt.Errorf("%s has no absolute path; %s", errs.Quote(s), want)
		}
		return path, "", nil
	}
	if strings.Contains(s, "@") {
		return "", "", fmt.Errorf("it has an @: user and password belong into rpcTokens of secret.json; %s", want)
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", "", fmt.Errorf("%s is not valid; %s", errs.Quote(s), want)
	}
	return "", s, nil
}

func parseTargetType(s string) (string, error) {
	const want = "want nvme-tcp or nvme-rdma"
	lower := strings.ToLower(s)
	switch nearest := errs.Nearest(lower, []string{"nvme-tcp", "nvme-rdma"}); {
	case lower == "nvme-tcp":
		return "tcp", nil
	case lower == "nvme-rdma":
		return "rdma", nil
	case s == "":
		return "", fmt.Errorf("it is missing; %s", want)
	case lower == "iscsi":
		return "", fmt.Errorf("%s is not supported, although spdk-csi does; %s", errs.Quote(s), want)
	case nearest != "":
		return "", fmt.Errorf("%s is not known; did you mean %s?", errs.Quote(s), nearest)
	}
	return "", fmt.Errorf("%s is not known; %s", errs.Quote(s), want)
}

// parseAddr accepts brackets around an address.
func parseAddr(s string) (netip.Addr, error) {
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(bare)
	if _, port := netip.ParseAddrPort(s); err != nil && port == nil {
		return netip.Addr{}, fmt.Errorf("%s has a port, and here the port is always %d; use addresses instead", errs.Quote(s), nvmePort)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is not an IP address such as 192.0.2.1 or 2001:db8::1; names are not resolved", errs.Quote(s))
	}
	return usable(a.Unmap())
}

func usable(a netip.Addr) (netip.Addr, error) {
	for kind, is := range map[string]bool{
		"unspecified": a.IsUnspecified(), "a multicast address": a.IsMulticast(),
		"link-local": a.IsLinkLocalUnicast(), "one with a zone": a.Zone() != "" && !a.IsLinkLocalUnicast(),
	} {
		if is {
			return netip.Addr{}, fmt.Errorf("%s is %s; want an address that all nodes reach", a, kind)
		}
	}
	return a, nil
}

// parseEndpoint parses an address, with a port or for nvmePort.
func parseEndpoint(s string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(s)
	if err != nil {
		a, err := parseAddr(s)
		return netip.AddrPortFrom(a, nvmePort), err
	}
	if at.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s has the port 0; want one such as %d", errs.Quote(s), nvmePort)
	}
	a, err := usable(at.Addr().Unmap())
	return netip.AddrPortFrom(a, at.Port()), err
}

// checkTopology accepts labels of Kubernetes. The CSI specification ignores the
// case of keys.
func checkTopology(topology map[string]string) error {
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(topology)) {
		value, lower := topology[key], strings.ToLower(key)
		prefix, _, _ := strings.Cut(key, "/")
		switch {
		case !labelKey.MatchString(key) || len(prefix) > 63:
			return fmt.Errorf("the key %s is not valid; want one such as topology.kubernetes.io/zone", errs.Quote(key))
		case !labelValue.MatchString(value):
			return fmt.Errorf("%s has the value %s; want at most 63 letters, digits, - _ and ., and a letter or digit first and last", key, errs.Quote(value))
		case seen[lower] != "":
			return fmt.Errorf("%s and %s are the same key", seen[lower], key)
		}
		seen[lower] = key
	}
	return nil
}
