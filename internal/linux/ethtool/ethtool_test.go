package ethtool

import (
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
	for name, want := range map[string]bool{"hw-tc-offload": false, "highdma": true, "no-such-feature": false} {
		if got, err := Feature(t.Context(), "nic", name); got != want || err != nil {
			t.Errorf("%s: %t, %v, want %t", name, got, err, want)
		}
	}
	if _, err := Feature(t.Context(), "none", "hw-tc-offload"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("no link: %v", err)
	}
}

func TestParse(t *testing.T) {
	for name, data := range map[string][]byte{"empty": nil, "short": {1}, "no active ones": {8, 0, 2, 0x80, 4, 0, 1, 0}} {
		if got, err := parse(data); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
