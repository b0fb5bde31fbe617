package cidr

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
)

func blocks(texts string) (all []netip.Prefix) {
	for text := range strings.FieldsSeq(texts) {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestSets(t *testing.T) {
	for _, c := range []struct{ a, b, merged, missing, common string }{
		{"", "", "", "", ""},
		{"10.0.0.0/25", "10.0.0.0/24 ::1/128", "10.0.0.0/25", "10.0.0.128/25 ::1/128", "10.0.0.0/25"},
		{"::1/128 10.0.0.128/25 10.0.0.0/25 10.0.0.7/32", "10.0.0.7/32", "10.0.0.0/24 ::1/128", "", "10.0.0.7/32"},
		{"10.0.0.0/24 10.0.2.0/24 2001:db8::/64", "10.0.0.128/25 10.0.1.0/24 10.0.2.7/32 2001:db8::/63", "10.0.0.0/24 10.0.2.0/24 2001:db8::/64",
			"10.0.1.0/24 2001:db8:0:1::/64", "10.0.0.128/25 10.0.2.7/32 2001:db8::/64"},
		{"0.0.0.0/1 128.0.0.0/1", "255.255.255.255/32", "0.0.0.0/0", "", "255.255.255.255/32"},
	} {
		merged, err1 := Merge(blocks(c.a))
		missing, err2 := Missing(blocks(c.a), blocks(c.b))
		common, err3 := Common(blocks(c.a), blocks(c.b))
		if err := errors.Join(err1, err2, err3); err != nil || !slices.Equal(merged, blocks(c.merged)) || !slices.Equal(missing, blocks(c.missing)) || !slices.Equal(common, blocks(c.common)) {
			t.Errorf("%q and %q: merged %v, missing %v, common %v, %v", c.a, c.b, merged, missing, common, err)
		}
	}
}

func TestInvalidBlock(t *testing.T) {
	valid, invalid := blocks("10.0.0.0/8"), []netip.Prefix{{}}
	for name, call := range map[string]func() (any, error){
		"set":    func() (any, error) { return Set(invalid) },
		"merge":  func() (any, error) { return Merge(invalid) },
		"wanted": func() (any, error) { return Missing(valid, invalid) },
		"held":   func() (any, error) { return Missing(invalid, valid) },
		"common": func() (any, error) { return Common(valid, invalid) },
	} {
		if got, err := call(); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
