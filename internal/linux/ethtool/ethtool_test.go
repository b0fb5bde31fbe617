package ethtool

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// veth has no hardware to offload to; highdma is active on all links.
func TestFeature(t *testing.T) {
	testkit.EnterNetNS(t)
	testkit.Run(t, "ip", "link", "add", "nic", "type", "veth", "peer", "name", "far")
	for name, want := range map[string]State{
		"hw-tc-offload": {}, "highdma": {Active: true, Changeable: true}, "no-such-feature": {},
		"tx-checksum-ip-generic": {Active: true, Changeable: true},
	} {
		if got, err := Feature(t.Context(), "nic", name); got != want || err != nil {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
	if _, err := Feature(t.Context(), "none", "hw-tc-offload"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("no link: %v", err)
	}
}

func TestSetFeature(t *testing.T) {
	testkit.EnterNetNS(t)
	testkit.Run(t, "ip", "link", "add", "nic", "type", "veth", "peer", "name", "far")
	const sums = "tx-checksum-ip-generic"
	is := func(link, name string, want bool) {
		t.Helper()
		if got, err := Feature(t.Context(), link, name); got.Active != want || err != nil {
			t.Errorf("%s of %s: %+v, %v, want %t", name, link, got, err, want)
		}
	}
	for _, on := range []bool{false, false, true, true} {
		testkit.Must(t, SetFeature(t.Context(), "nic", sums, on))
		is("nic", sums, on)
		is("nic", "highdma", true) // others stay
		is("far", sums, true)
	}
	// The kernel accepts the request, but the driver does not have the feature.
	testkit.Must(t, SetFeature(t.Context(), "nic", "hw-tc-offload", true))
	is("nic", "hw-tc-offload", false)
	testkit.WantError(t, "no link", SetFeature(t.Context(), "none", sums, true), unix.ENODEV, sums, "none")
	testkit.WantError(t, "no feature", SetFeature(t.Context(), "nic", "no-such-feature", true), nil, "no-such-feature")
	testkit.WantError(t, "canceled", SetFeature(testkit.Canceled(t), "nic", sums, true), context.Canceled)
}

func TestParse(t *testing.T) {
	for name, data := range map[string][]byte{"empty": nil, "short": {1}, "no active ones": {8, 0, 2, 0x80, 4, 0, 1, 0}} {
		if got, _, err := parse(data); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
