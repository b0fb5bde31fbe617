package vflink

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network gives the test a network namespace with a pair of links, on a thread
// that ends with it.
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

// The kernel's errors with its own text and the usual reason.
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
		"GUID":                 {k.SetGUIDs(ctx, "nic", 0, 0x11, 0x22), unix.EOPNOTSUPP, []string{"0000000000000011", "0000000000000022"}},
		"index":                {k.SetTrust(ctx, "nic", -1, true), unix.EINVAL, []string{"VF -1"}},
		"switch mode":          {k.SetESwitch(ctx, "0000:3b:00.0", "hub"), unix.EINVAL, []string{"hub", "switchdev"}},
		"switch of nothing":    {k.SetESwitch(ctx, "ffff:ff:1f.7", Switchdev), nil, []string{"switchdev", "ffff:ff:1f.7"}},
		"address":              {k.SetESwitch(ctx, "../3b", Legacy), nil, []string{"../3b", "0000:3b:02.1"}},
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
		"Link": second(k.Link(ctx, "lo")), "SetMTU": k.SetMTU(ctx, "lo", 65536), "SetESwitch": k.SetESwitch(ctx, "ffff:ff:1f.7", Legacy),
		"ESwitch": second(k.ESwitch(ctx, "ffff:ff:1f.7")), "AddVDPA": k.AddVDPA(ctx, "vdpa9", "ffff:ff:1f.7"), "DeleteVDPA": k.DeleteVDPA(ctx, "vdpa9"),
		"RDMAMode": second(k.RDMAMode(ctx)),
	} {
		testkit.WantError(t, name, err, context.Canceled)
	}
}

// A kernel without ib_core does not have the protocol.
func TestRDMAMode(t *testing.T) {
	if mode, err := (Kernel{}).RDMAMode(t.Context()); err != nil || mode != "" && mode != Shared && mode != Exclusive {
		t.Errorf("%q, %v", mode, err)
	}
}

func u32(values ...uint32) (b []byte) {
	for _, v := range values {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

func encode(t testing.TB, fill func(*netlink.AttributeEncoder)) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	fill(ae)
	return testkit.Value(ae.Encode())(t)
}

// attribute is one of an entry of the table.
type attribute struct {
	kind uint16
	data []byte
}

func vfMAC(vf int, mac net.HardwareAddr) []byte {
	m := nl.VfMac{Vf: uint32(vf)}
	copy(m.Mac[:], mac)
	return m.Serialize()
}

func vfSwitch(vf, on uint32) []byte { return u32(vf, on) }

func vfGUID(vf uint32, guid uint64) []byte { return (&nl.VfGUID{Vf: vf, GUID: guid}).Serialize() }

func header(kind uint16, index, flags uint32) []byte {
	return append(binary.NativeEndian.AppendUint16([]byte{0, 0}, kind), u32(index, flags, 0)...)
}

// answer is a link with a table of these entries that claims to have count VFs.
func answer(t testing.TB, kind uint16, count uint32, entries ...[]attribute) []byte {
	t.Helper()
	return append(header(kind, 7, unix.IFF_UP), encode(t, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, "ens1f0")
		ae.Uint32(unix.IFLA_MTU, 9000)
		ae.Uint32(unix.IFLA_NUM_VF, count)
		ae.Nested(unix.IFLA_VFINFO_LIST, func(list *netlink.AttributeEncoder) error {
			for _, attributes := range entries {
				list.Nested(unix.IFLA_VF_INFO, func(entry *netlink.AttributeEncoder) error {
					for _, a := range attributes {
						entry.Bytes(a.kind, a.data)
					}
					return nil
				})
			}
			return nil
		})
	})...)
}

func TestParseLink(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 1}
	table := [][]attribute{
		{
			{unix.IFLA_VF_MAC, vfMAC(1, mac)}, {unix.IFLA_VF_BROADCAST, make([]byte, 32)}, {unix.IFLA_VF_VLAN, u32(1, 77, 3)},
			{unix.IFLA_VF_SPOOFCHK, vfSwitch(1, 1)}, {unix.IFLA_VF_TRUST, vfSwitch(1, 0)},
		},
		{
			{unix.IFLA_VF_MAC, vfMAC(0, make([]byte, ethernet))}, {unix.IFLA_VF_SPOOFCHK, vfSwitch(0, notReported)}, {unix.IFLA_VF_TRUST, vfSwitch(0, 1)},
			{unix.IFLA_VF_IB_NODE_GUID, vfGUID(0, 0x0011223344556677)}, {unix.IFLA_VF_IB_PORT_GUID, vfGUID(0, 1)},
		},
	}
	want := Link{Index: 7, Name: "ens1f0", MTU: 9000, Up: true, VFs: []VF{
		{Index: 0, Trust: On, GUIDs: true, NodeGUID: 0x0011223344556677, PortGUID: 1},
		{Index: 1, MAC: mac, VLAN: 77, Trust: Off, Spoof: On},
	}}
	whole := answer(t, unix.ARPHRD_ETHER, 2, table...)
	got, err := parseLink(whole)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if v, known := got.VF(1); !known || v.VLAN != 77 {
		t.Errorf("VF 1 of the table: %+v, %t", v, known)
	}
	if _, known := got.VF(2); known {
		t.Error("the table has a VF 2")
	}
	if l, err := parseLink(answer(t, unix.ARPHRD_INFINIBAND, 2, table...)); err != nil || l.VFs[1].MAC != nil {
		t.Errorf("an address that is not Ethernet's: %+v, %v", l.VFs, err)
	}
	if l, err := parseLink(answer(t, unix.ARPHRD_ETHER, 0)); err != nil || l.VFs != nil {
		t.Errorf("a link without virtual functions: %+v, %v", l, err)
	}
	for cut := range unix.SizeofIfInfomsg {
		if _, err := parseLink(whole[:cut]); err == nil {
			t.Errorf("no error for a header of %d bytes", cut)
		}
	}
}

func TestParseBadTables(t *testing.T) {
	entry := []attribute{{unix.IFLA_VF_MAC, vfMAC(0, nil)}}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"cut off":        {answer(t, unix.ARPHRD_ETHER, 300, entry), "300 virtual functions"},
		"short MAC":      {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, u32(0)}}), "too short"},
		"short switch":   {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_TRUST, u32(0)}}), "too short"},
		"short GUID":     {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_IB_PORT_GUID, u32(0, 0, 0)}}), "too short"},
		"negative index": {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, vfMAC(-1, nil)}}), "index -1"},
		"another entry": {append(header(unix.ARPHRD_ETHER, 7, 0), encode(t, func(ae *netlink.AttributeEncoder) {
			ae.Nested(unix.IFLA_VFINFO_LIST, func(list *netlink.AttributeEncoder) error { list.Uint32(9, 0); return nil })
		})...), "type 9"},
	} {
		t.Run(name, func(t *testing.T) {
			if l, err := parseLink(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v, %v, want an error with %q", l, err, c.want)
			}
		})
	}
}

func TestLinkNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a b", "a:b", "sixteen-bytes-xx", "a\x00b"} {
		for _, err := range []error{second(Kernel{}.Link(t.Context(), name)), Kernel{}.SetUp(t.Context(), name)} {
			testkit.WantError(t, name, err, nil, "invalid link name")
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(answer(f, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, vfMAC(0, nil)}, {unix.IFLA_VF_TRUST, vfSwitch(0, 1)}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLink(data) // must not panic
		if err == nil && len(l.VFs) > len(data)/4 {
			t.Errorf("%d virtual functions in %d bytes", len(l.VFs), len(data))
		}
	})
}
