package request

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
)

func TestBlock(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.7":                 "192.0.2.7/32",
		"192.0.2.7/32":              "192.0.2.7/32",
		"192.0.2.0/24":              "192.0.2.0/24",
		"0.0.0.0/0":                 "0.0.0.0/0",
		"0.0.0.0/8":                 "0.0.0.0/8",
		"255.255.255.255":           "255.255.255.255/32",
		"127.0.0.1":                 "127.0.0.1/32", // left to CheckReach
		"2001:db8::7":               "2001:db8::7/128",
		"2001:DB8:0:0::/64":         "2001:db8::/64",
		"::/0":                      "::/0",
		"::1":                       "::1/128",
		"fe80::1":                   "fe80::1/128",
		"::ffff:192.0.2.7":          "192.0.2.7/32",
		"::ffff:c000:207":           "192.0.2.7/32",
		"::ffff:192.0.2.7/128":      "192.0.2.7/32",
		"::ffff:192.0.2.0/120":      "192.0.2.0/24",
		"::ffff:0:0/96":             "0.0.0.0/0",
		"224.0.0.0/3":               "224.0.0.0/3", // half of it is not multicast
		"fe00::/7":                  "fe00::/7",
		"ffff:ffff::/1":             `error: write 8000::/1 for the block, or ffff:ffff::/128 for the single`,
		"192.0.2.7/24":              `error: "192.0.2.7/24" has host bits set: write 192.0.2.0/24 for the block, or 192.0.2.7/32 for the single address`,
		"192.0.2.7/0":               `error: write 0.0.0.0/0 for`,
		"2001:db8::7/64":            `error: write 2001:db8::/64 for the block, or 2001:db8::7/128 for`,
		"::ffff:192.0.2.7/120":      `error: write 192.0.2.0/24 for the block, or 192.0.2.7/32 for`,
		"::ffff:192.0.2.0/95":       `error: needs a prefix length from 96 to 128`,
		"::ffff:0:0/80":             `error: needs a prefix length from 96 to 128`,
		"":                          `error: the block is empty: write a CIDR such as`,
		" \t":                       `error: the block is empty`,
		" 192.0.2.7":                `error: " 192.0.2.7" has leading or trailing spaces: write "192.0.2.7"`,
		"192.0.2.0/24\n":            `error: "192.0.2.0/24\n" has leading or trailing spaces: write "192.0.2.0/24"`,
		"192.0.2.0 /24":             `error: does not begin with an IP address`,
		"192.0.2.0/ 24":             `error: prefix length " 24" is not a number`,
		"010.0.0.1":                 `error: "010.0.0.1" is not a CIDR: a number has a leading zero, which some programs parse as octal`,
		"192.0.2.00":                `error: has a leading zero`,
		"999.1.1.1":                 `error: does not begin with an IP address`,
		"09.1.1.999":                `error: does not begin with an IP address`,
		"10.1":                      `error: does not begin with an IP address`,
		"10":                        `error: does not begin with an IP address`,
		"0x0a000001":                `error: does not begin with an IP address`,
		"node-7":                    `error: host names, ports and ranges are not supported`,
		"192.0.2.7:3260":            `error: it has a port, and a fence applies to whole addresses: write 192.0.2.7/32`,
		"10.0.0.7:0":                `error: write 10.0.0.7/32`,
		"[2001:db8::7]:0":           `error: write 2001:db8::7/128`,
		"[2001:db8::7]":             `error: host names, ports and ranges are not supported`,
		"192.0.2.7-192.0.2.9":       `error: host names, ports and ranges are not supported`,
		"192.0.2.7,192.0.2.9":       `error: host names, ports and ranges are not supported`,
		"/24":                       `error: does not begin with an IP address`,
		"fe80::1%eth0":              `error: it has a zone (%...)`,
		"fe80::1%eth0/64":           `error: it has a zone (%...)`,
		"fe80::/64%eth0":            `error: prefix length "64%eth0" is not a number`,
		"192.0.2.0/33":              `error: prefix length "33" is not a number from 0 to 32`,
		"2001:db8::/129":            `error: from 0 to 128`,
		"192.0.2.0/-1":              `error: prefix length "-1" is not a number`,
		"192.0.2.0/+8":              `error: prefix length "+8" is not a number`,
		"192.0.2.0/024":             `error: prefix length "024" is not a number`,
		"192.0.2.0/":                `error: prefix length "" is not a number`,
		"192.0.2.0/24/24":           `error: prefix length "24/24" is not a number`,
		"192.0.2.0/280":             `error: prefix length "280" is not a number`,
		"192.0.2.0/255.255.255.0":   `error: write /24 instead of the mask 255.255.255.0`,
		"192.0.2.0/0.0.0.0":         `error: write /0 instead of the mask`,
		"192.0.2.0/0.0.0.255":       `error: 0.0.0.255 is neither a prefix length nor a netmask`,
		"2001:db8::/ffff:ffff::":    `error: write /32 instead of the mask`,
		"192.0.2.0/ffff::":          `error: prefix length "ffff::" is not a number`,
		"0.0.0.0":                   `error: 0.0.0.0/32 is not a client's address: write the client's address, or 0.0.0.0/0 for all clients`,
		"::":                        `error: or ::/0 for all clients`,
		"::ffff:0.0.0.0":            `error: 0.0.0.0/32 is not a client's address`,
		"224.0.0.0/4":               `error: 224.0.0.0/4 is multicast`,
		"239.1.2.3":                 `error: is multicast`,
		"ff00::/8":                  `error: is multicast`,
		"ff02::1":                   `error: is multicast`,
		strings.Repeat("1", 10_000): `error: … (10000 bytes) is not a CIDR`,
	} {
		got, err := Block(text)
		wrong, isError := strings.CutPrefix(want, "error: ")
		switch {
		case !isError && (err != nil || got != netip.MustParsePrefix(want)):
			t.Errorf("%q: got %v, %v; want %s", text, got, err, want)
		case !isError:
		case err == nil || !errors.Is(err, errs.Invalid) || got.IsValid():
			t.Errorf("%.60q: got %v, %v; want an error of kind Invalid", text, got, err)
		case !strings.Contains(err.Error(), wrong) || len(err.Error()) > 400:
			t.Errorf("%.60q: got %v; want %q in it", text, err, wrong)
		}
	}
}

// The form that an error suggests is accepted.
func TestBlockAdvice(t *testing.T) {
	for _, text := range []string{"192.0.2.7/24", "2001:db8::7/64", "::ffff:192.0.2.7/120", " 192.0.2.7 ", "10.0.0.1/0"} {
		_, err := Block(text)
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		advised := 0
		_, advice, _ := strings.Cut(err.Error(), ": write ")
		for _, word := range strings.FieldsFunc(advice, func(r rune) bool { return r == ' ' || r == ',' || r == '"' }) {
			if !strings.Contains(word, ".") && !strings.Contains(word, ":") {
				continue
			}
			if _, err := Block(word); err != nil {
				t.Errorf("%q is suggested for %q, but: %v", word, text, err)
			}
			advised++
		}
		if advised == 0 {
			t.Errorf("no suggestion in %v", err)
		}
	}
}

func FuzzBlock(f *testing.F) {
	for _, text := range []string{"192.0.2.7", "192.0.2.0/24", "2001:db8::/32", "::ffff:192.0.2.0/120", "010.0.0.1", "fe80::1%a/3", "1.2.3.4/255.255.0.0", "0.0.0.0", "ff02::1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		block, err := Block(text)
		if err != nil {
			if !errors.Is(err, errs.Invalid) || len(err.Error()) > 1000 || block.IsValid() {
				t.Errorf("%q: %v, %v", text, block, err)
			}
			return
		}
		checkBlock(t, block)
		if again, err := Block(block.String()); err != nil || again != block {
			t.Errorf("%q is %v, which parses as %v, %v", text, block, again, err)
		}
	})
}

// checkBlock checks what the planner and the enforcers rely on.
func checkBlock(t *testing.T, block netip.Prefix) {
	t.Helper()
	if !block.IsValid() || block != block.Masked() || block.Addr().Is4In6() || block.Addr().Zone() != "" {
		t.Errorf("%v is not a masked block", block)
	}
}
