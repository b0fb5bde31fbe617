package netlinks

import (
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func encode(t testing.TB, fill func(*netlink.AttributeEncoder)) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	fill(ae)
	return testkit.Value(ae.Encode())(t)
}

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

// The table claims to have count VFs.
func answer(t testing.TB, kind uint16, count uint32, entries ...[]attribute) []byte {
	t.Helper()
	return append(linkHeader(kind, 7, unix.IFF_UP), encode(t, func(ae *netlink.AttributeEncoder) {
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

func TestParseTable(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 1}
	table := [][]attribute{
		{
			{unix.IFLA_VF_MAC, vfMAC(1, mac)}, {unix.IFLA_VF_BROADCAST, make([]byte, 32)}, {unix.IFLA_VF_VLAN, u32(1, 77, 3)},
			{unix.IFLA_VF_SPOOFCHK, vfSwitch(1, 1)}, {unix.IFLA_VF_TRUST, vfSwitch(1, 0)},
			{unix.IFLA_VF_LINK_STATE, u32(1, 2)}, {unix.IFLA_VF_RATE, u32(1, 10, 100)},
			{unix.IFLA_VF_VLAN_LIST, encode(t, func(list *netlink.AttributeEncoder) {
				list.Bytes(unix.IFLA_VF_VLAN_INFO, (&nl.VfVlanInfo{VfVlan: nl.VfVlan{Vf: 1, Vlan: 77, Qos: 3}, VlanProto: 0xa888}).Serialize())
			})},
		},
		{
			{unix.IFLA_VF_MAC, vfMAC(0, make([]byte, ethernet))}, {unix.IFLA_VF_SPOOFCHK, vfSwitch(0, notReported)}, {unix.IFLA_VF_TRUST, vfSwitch(0, 1)},
			{unix.IFLA_VF_IB_NODE_GUID, vfGUID(0, 0x0011223344556677)}, {unix.IFLA_VF_IB_PORT_GUID, vfGUID(0, 1)},
		},
	}
	want := Link{Index: 7, Name: "ens1f0", Encapsulation: "ether", MTU: 9000, Up: true, VFs: []VF{
		{Index: 0, Trust: On, GUIDs: true, NodeGUID: 0x0011223344556677, PortGUID: 1},
		{Index: 1, MAC: mac, VLAN: 77, QoS: 3, QinQ: true, Trust: Off, Spoof: On, LinkState: 2, MinRate: 10, MaxRate: 100},
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
}

func TestParseBadTables(t *testing.T) {
	entry := []attribute{{unix.IFLA_VF_MAC, vfMAC(0, nil)}}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"truncated":      {answer(t, unix.ARPHRD_ETHER, 300, entry), "300 virtual functions"},
		"short MAC":      {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, u32(0)}}), "too short"},
		"short switch":   {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_TRUST, u32(0)}}), "too short"},
		"short GUID":     {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_IB_PORT_GUID, u32(0, 0, 0)}}), "too short"},
		"negative index": {answer(t, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, vfMAC(-1, nil)}}), "index -1"},
		"another entry": {append(linkHeader(unix.ARPHRD_ETHER, 7, 0), encode(t, func(ae *netlink.AttributeEncoder) {
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
