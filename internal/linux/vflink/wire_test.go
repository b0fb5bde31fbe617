package vflink

import (
	"encoding/binary"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

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
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func header(kind uint16, index, flags uint32) []byte {
	return append(binary.NativeEndian.AppendUint16([]byte{0, 0}, kind), u32(index, flags, 0)...)
}

// answer is a link with a table of as many entries, said to be of count.
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
			{unix.IFLA_VF_MAC, vfMAC(1, mac)}, {unix.IFLA_VF_BROADCAST, make([]byte, longest)}, {unix.IFLA_VF_VLAN, u32(1, 77, 3)},
			{unix.IFLA_VF_SPOOFCHK, vfSwitch(1, true)}, {unix.IFLA_VF_TRUST, vfSwitch(1, false)},
		},
		{
			{unix.IFLA_VF_MAC, vfMAC(0, make([]byte, ethernet))}, {unix.IFLA_VF_SPOOFCHK, u32(0, unsaid)}, {unix.IFLA_VF_TRUST, vfSwitch(0, true)},
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
		t.Errorf("what is no Ethernet address is taken for one: %+v, %v", l.VFs, err)
	}
	if l, err := parseLink(answer(t, unix.ARPHRD_ETHER, 0)); err != nil || l.VFs != nil {
		t.Errorf("a link without virtual functions: %+v, %v", l, err)
	}
	for cut := range unix.SizeofIfInfomsg {
		if _, err := parseLink(whole[:cut]); err == nil {
			t.Errorf("a header of %d bytes is taken", cut)
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

// What is written is as linux/if_link.h has it.
func TestRequests(t *testing.T) {
	if b := vfGUID(3, 0x0011223344556677); len(b) != 16 || binary.NativeEndian.Uint64(b[8:]) != 0x0011223344556677 || binary.NativeEndian.Uint32(b) != 3 {
		t.Errorf("struct ifla_vf_guid: %x", b)
	}
	if b := vfMAC(3, net.HardwareAddr{1, 2, 3, 4, 5, 6}); len(b) != 36 || !slices.Equal(b[4:10], []byte{1, 2, 3, 4, 5, 6}) {
		t.Errorf("struct ifla_vf_mac: %x", b)
	}
	request, err := setRequest("eth0", true, func(*netlink.AttributeEncoder) {})
	if err != nil || binary.NativeEndian.Uint32(request[4:]) != 0 || binary.NativeEndian.Uint32(request[8:]) != unix.IFF_UP || binary.NativeEndian.Uint32(request[12:]) != unix.IFF_UP {
		t.Errorf("a link is brought up with %x, %v", request, err)
	}
	// Without the first bit there is no table, without the other none of many functions.
	if request, err := getRequest("eth0"); err != nil || binary.NativeEndian.Uint32(request[len(request)-4:]) != 1|8 {
		t.Errorf("a link is asked for with %x, %v", request, err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a b", "a:b", "sixteen-bytes-xx", "a\x00b"} {
		if _, err := getRequest(name); err == nil {
			t.Errorf("the name %q is taken", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(answer(f, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, vfMAC(0, nil)}, {unix.IFLA_VF_TRUST, vfSwitch(0, true)}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLink(data) // never panics
		if err == nil && len(l.VFs) > len(data)/4 {
			t.Errorf("%d virtual functions in %d bytes", len(l.VFs), len(data))
		}
	})
}
