package netlinks

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// marshal puts attributes behind a header.
func marshal(t testing.TB, header []byte, attributes ...netlink.Attribute) []byte {
	t.Helper()
	b, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(header), b...)
}

func linkHeader(encapsulation uint16, index, flags uint32) []byte {
	b := binary.NativeEndian.AppendUint16([]byte{0, 0}, encapsulation)
	return append(append(append(b, u32(index)...), u32(flags)...), 0, 0, 0, 0)
}

func routeHeader(family, to, kind byte) []byte {
	return []byte{family, to, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0}
}

func TestParseLink(t *testing.T) {
	whole := marshal(t, linkHeader(unix.ARPHRD_INFINIBAND, 7, unix.IFF_UP|unix.IFF_RUNNING),
		netlink.Attribute{Type: unix.IFLA_IFNAME, Data: []byte("ib0\x00")},
		netlink.Attribute{Type: unix.IFLA_ADDRESS, Data: []byte{2, 0, 0x5e, 0x10, 0, 1}},
		netlink.Attribute{Type: unix.IFLA_MTU, Data: u32(2044)},
		netlink.Attribute{Type: unix.IFLA_MASTER, Data: u32(4)},
		netlink.Attribute{Type: unix.IFLA_LINK, Data: u32(3)},
		netlink.Attribute{Type: unix.IFLA_PHYS_PORT_NAME, Data: []byte("pf0vf1\x00")},
		netlink.Attribute{Type: unix.IFLA_PHYS_SWITCH_ID, Data: []byte{0xa0, 0x0b}},
		netlink.Attribute{Type: unix.IFLA_LINKINFO, Data: marshal(t, nil, netlink.Attribute{Type: unix.IFLA_INFO_KIND, Data: []byte("vlan\x00")})},
		netlink.Attribute{Type: unix.IFLA_PROP_LIST | netlink.Nested, Data: marshal(t, nil,
			netlink.Attribute{Type: unix.IFLA_ALT_IFNAME, Data: []byte("ibp1\x00")}, netlink.Attribute{Type: unix.IFLA_ALT_IFNAME, Data: []byte("ibs1\x00")})},
	)
	want := Link{
		Index: 7, Name: "ib0", Names: []string{"ibp1", "ibs1"}, Encapsulation: "infiniband", Kind: "vlan", MAC: "02:00:5e:10:00:01",
		MTU: 2044, Up: true, Running: true, Master: 4, Lower: 3, PortName: "pf0vf1", SwitchID: "a00b",
	}
	got, err := parseLink(whole)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	elsewhere := marshal(t, linkHeader(unix.ARPHRD_ETHER, 7, 0),
		netlink.Attribute{Type: unix.IFLA_LINK, Data: u32(3)}, netlink.Attribute{Type: unix.IFLA_LINK_NETNSID, Data: u32(0)})
	idle := marshal(t, linkHeader(unix.ARPHRD_ETHER, 7, unix.IFF_UP))
	if l, err := parseLink(idle); !l.Up || l.Running || err != nil {
		t.Errorf("a link that is up without a carrier: %+v, %v", l, err)
	}
	if l, err := parseLink(elsewhere); l.Lower != 0 || l.Up || err != nil {
		t.Errorf("a link below in another namespace: %d, %v", l.Lower, err)
	}
	for cut := range sizeofLink {
		if _, err := parseLink(whole[:cut]); err == nil {
			t.Errorf("a header of %d bytes is taken", cut)
		}
	}
}

func TestParseDefault(t *testing.T) {
	oif := netlink.Attribute{Type: unix.RTA_OIF, Data: u32(3)}
	hop := func(link uint32) []byte { return append([]byte{8, 0, 0, 0}, u32(link)...) }
	for name, c := range map[string]struct {
		data []byte
		want []int
		ok   bool
	}{
		"IPv4":          {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), oif), []int{3}, true},
		"IPv6":          {marshal(t, routeHeader(unix.AF_INET6, 0, unix.RTN_UNICAST), oif), []int{3}, true},
		"not a default": {marshal(t, routeHeader(unix.AF_INET, 24, unix.RTN_UNICAST), oif), nil, true},
		"unreachable":   {marshal(t, routeHeader(unix.AF_INET6, 0, unix.RTN_UNREACHABLE), oif), nil, true},
		"several":       {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: unix.RTA_MULTIPATH, Data: append(hop(4), hop(5)...)}), []int{4, 5}, true},
		"object":        {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: nextHopID, Data: u32(9)}), nil, false},
		"object, told":  {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: nextHopID, Data: u32(9)}, oif), []int{3}, true},
		"short hop":     {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: unix.RTA_MULTIPATH, Data: []byte{4, 0, 0, 0, 0, 0, 0, 0}}), nil, false},
		"no header":     {[]byte{unix.AF_INET}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseDefault(c.data)
			if (err == nil) != c.ok || c.ok && !slices.Equal(got, c.want) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// The kernel's own list is what the standard library has of it.
func TestKernel(t *testing.T) {
	links, err := Kernel{}.Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	devices, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		i := slices.IndexFunc(links, func(l Link) bool { return l.Index == d.Index })
		if i < 0 || links[i].Name != d.Name || links[i].MTU != d.MTU || d.HardwareAddr != nil && links[i].MAC != d.HardwareAddr.String() {
			t.Errorf("%+v is not in %+v", d, links)
		}
	}
	if _, err := (Kernel{}).DefaultRoutes(t.Context()); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(marshal(f, linkHeader(unix.ARPHRD_ETHER, 1, 0), netlink.Attribute{Type: unix.IFLA_IFNAME, Data: []byte("lo\x00")}))
	f.Add(marshal(f, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: unix.RTA_MULTIPATH, Data: []byte{9, 0, 0, 0, 1, 0, 0, 0, 7}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseLink(data) // neither may panic
		if links, err := parseDefault(data); err == nil && len(links) > len(data)/4 {
			t.Errorf("%d links in %d bytes", len(links), len(data))
		}
	})
}
