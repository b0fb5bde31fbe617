package vflink

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func network(t *testing.T) {
	t.Helper()
	testkit.EnterNetNS(t)
	testkit.Run(t, "ip", "link", "add", "nic", "type", "veth", "peer", "name", "far")
}

func TestLink(t *testing.T) {
	network(t)
	k := Kernel{}
	before, err := k.Link(t.Context(), "nic")
	if err != nil || before.Name != "nic" || before.Index == 0 || before.MTU != 1500 || before.Up || before.VFs != nil {
		t.Fatalf("%+v, %v", before, err)
	}
	testkit.Must(t, k.SetMTU(t.Context(), "nic", 9000), k.SetUp(t.Context(), "nic"), k.SetUp(t.Context(), "nic"))
	after, err := k.Link(t.Context(), "nic")
	if err != nil || after.Name != "nic" || after.MTU != 9000 || !after.Up {
		t.Errorf("%+v, %v", after, err)
	}
}

func TestRefusals(t *testing.T) {
	network(t)
	k, ctx := Kernel{}, t.Context()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for name, c := range map[string]struct {
		err  error
		want error
		says []string
	}{
		"no link":              {second(k.Link(ctx, "none")), unix.ENODEV, []string{"none", "network namespace"}},
		"no link to change":    {k.SetMTU(ctx, "none", 1500), unix.ENODEV, []string{"1500", "none"}},
		"MTU":                  {k.SetMTU(ctx, "nic", 1), unix.EINVAL, []string{"mtu less than device minimum", "MTU", "1 on nic", "minmtu"}},
		"huge MTU":             {k.SetMTU(ctx, "nic", 1<<32+1400), unix.EINVAL, []string{"4294968696"}},
		"huge index":           {k.SetTrust(ctx, "nic", 1<<32, true), unix.EINVAL, []string{"VF 4294967296"}},
		"negative MTU":         {k.SetMTU(ctx, "nic", -1), unix.EINVAL, []string{"-1"}},
		"MAC":                  {k.SetMAC(ctx, "nic", 3, mac), unix.EOPNOTSUPP, []string{"02:00:00:00:00:01", "VF 3 of nic", "physical function"}},
		"MAC of an InfiniBand": {k.SetMAC(ctx, "nic", 3, make([]byte, 20)), unix.EINVAL, []string{"20 bytes", "want 6"}},
		"trust":                {k.SetTrust(ctx, "nic", 0, true), unix.EOPNOTSUPP, []string{"trust to true", "VF 0 of nic"}},
		"spoof":                {k.SetSpoofCheck(ctx, "nic", 0, false), unix.EOPNOTSUPP, []string{"spoof checking to false"}},
		"VLAN":                 {k.SetVLAN(ctx, "nic", 0, 77, 3, false), unix.EOPNOTSUPP, []string{"VLAN to 77", "VF 0 of nic"}},
		"service VLAN":         {k.SetVLAN(ctx, "nic", 0, 77, 3, true), unix.EOPNOTSUPP, []string{"VLAN to 77"}},
		"rates":                {k.SetRates(ctx, "nic", 0, 10, 100), unix.EOPNOTSUPP, []string{"10 and 100 Mbit/s"}},
		"link state":           {k.SetLinkState(ctx, "nic", 0, 2), unix.EOPNOTSUPP, []string{"link state to 2"}},
		"GUID":                 {k.SetGUIDs(ctx, "nic", 0, 0x11, 0x22), unix.EOPNOTSUPP, []string{"0000000000000011", "0000000000000022"}},
		"index":                {k.SetTrust(ctx, "nic", -1, true), unix.EINVAL, []string{"VF -1"}},
		"steering of nothing":  {k.SetFlowSteering(ctx, "ffff:ff:1f.7", "smfs"), nil, []string{"smfs", "ffff:ff:1f.7"}},
		"steering of a name":   {k.SetFlowSteering(ctx, "nic", "smfs"), nil, []string{"nic", "0000:3b:02.1"}},
		"offload of no link":   {k.SetTCOffload(ctx, "none"), unix.ENODEV, []string{"hw-tc-offload", "none", "network namespace"}},
		"switch mode":          {k.SetESwitch(ctx, "0000:3b:00.0", "hub"), nil, []string{"hub", "switchdev"}},
		"switch of nothing":    {k.SetESwitch(ctx, "ffff:ff:1f.7", "switchdev"), nil, []string{"switchdev", "ffff:ff:1f.7"}},
		"address":              {k.SetESwitch(ctx, "../3b", "legacy"), nil, []string{"../3b", "0000:3b:02.1"}},
		"asked at no address":  {second(k.ESwitch(ctx, "eth0")), nil, []string{"eth0", "0000:3b:02.1"}},
		"vDPA":                 {k.AddVDPA(ctx, "vdpa:0000:3b:02.1", "ffff:ff:1f.7"), nil, []string{"vdpa:0000:3b:02.1", "ffff:ff:1f.7"}},
		"vDPA's name":          {k.AddVDPA(ctx, "a/b", "0000:3b:02.1"), nil, []string{"a/b"}},
		"no vDPA":              {k.DeleteVDPA(ctx, "vdpa9"), nil, []string{"vdpa9"}},
		"vDPA's name, gone":    {k.DeleteVDPA(ctx, ".."), nil, []string{`".."`}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.err == nil || c.want != nil && !errors.Is(c.err, c.want) {
				t.Fatalf("%v, want %v", c.err, c.want)
			}
			for _, word := range c.says {
				if !strings.Contains(c.err.Error(), word) {
					t.Errorf("%q does not say %q", c.err, word)
				}
			}
		})
	}
	if on, err := k.TCOffload(ctx, "nic"); on != "fixed" || err != nil {
		t.Errorf("hw-tc-offload of a veth: %q, %v", on, err)
	}
	if mode, err := k.FlowSteering(ctx, "ffff:ff:1f.7"); mode != "" || err != nil {
		t.Errorf("flow steering of no function: %q, %v", mode, err)
	}
	if l, err := k.Link(ctx, "nic"); err != nil || l.MTU != 1500 || l.Up {
		t.Errorf("refused requests changed the link: %+v, %v", l, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestESwitchOfNothing(t *testing.T) {
	if mode, err := (Kernel{}).ESwitch(t.Context(), "ffff:ff:1f.7"); mode != "" || err != nil {
		t.Errorf("the embedded switch of nothing: %q, %v", mode, err)
	}
}

func TestEndedContext(t *testing.T) {
	k, ctx := Kernel{}, testkit.Canceled(t)
	for name, err := range map[string]error{
		"Link": second(k.Link(ctx, "lo")), "SetMTU": k.SetMTU(ctx, "lo", 65536), "SetESwitch": k.SetESwitch(ctx, "ffff:ff:1f.7", "legacy"),
		"ESwitch": second(k.ESwitch(ctx, "ffff:ff:1f.7")), "AddVDPA": k.AddVDPA(ctx, "vdpa9", "ffff:ff:1f.7"), "DeleteVDPA": k.DeleteVDPA(ctx, "vdpa9"),
		"RDMAMode": second(k.RDMAMode(ctx)), "SetTCOffload": k.SetTCOffload(ctx, "lo"),
	} {
		testkit.WantError(t, name, err, context.Canceled)
	}
}

// A kernel without ib_core does not have the protocol.
func TestRDMAMode(t *testing.T) {
	if mode, err := (Kernel{}).RDMAMode(t.Context()); err != nil || mode != "" && mode != "shared" && mode != "exclusive" {
		t.Errorf("%q, %v", mode, err)
	}
}

func TestLinkNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a b", "a:b", "sixteen-bytes-xx", "a\x00b"} {
		for _, err := range []error{second(Kernel{}.Link(t.Context(), name)), Kernel{}.SetUp(t.Context(), name)} {
			testkit.WantError(t, name, err, nil, "invalid link name")
		}
	}
}
