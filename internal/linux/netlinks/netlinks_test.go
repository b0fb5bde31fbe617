package netlinks

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	library "github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func u32(values ...uint32) (b []byte) {
	for _, v := range values {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	return b
}

func marshal(t testing.TB, header []byte, attributes ...netlink.Attribute) []byte {
	t.Helper()
	b := testkit.Value(netlink.MarshalAttributes(attributes))(t)
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
	for length := range sizeofLink {
		if _, err := parseLink(whole[:length]); err == nil {
			t.Errorf("no error for a header of %d bytes", length)
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
		"object, link":  {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: nextHopID, Data: u32(9)}, oif), []int{3}, true},
		"short hop":     {marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: unix.RTA_MULTIPATH, Data: []byte{4, 0, 0, 0, 0, 0, 0, 0}}), nil, false},
		"no header":     {[]byte{unix.AF_INET}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := parseDefault(c.data); (err == nil) != c.ok || c.ok && !slices.Equal(got, c.want) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// Compare with the standard library.
func TestKernel(t *testing.T) {
	links := testkit.Value(Kernel{}.Links(t.Context()))(t)
	devices := testkit.Value(net.Interfaces())(t)
	for _, d := range devices {
		i := slices.IndexFunc(links, func(l Link) bool { return l.Index == d.Index })
		if i < 0 || links[i].Name != d.Name || links[i].MTU != d.MTU || d.HardwareAddr != nil && links[i].MAC != d.HardwareAddr.String() {
			t.Errorf("%+v is not in %+v", d, links)
		}
	}
	testkit.Value((Kernel{}).DefaultRoutes(t.Context()))(t)
}

func FuzzParse(f *testing.F) {
	f.Add(marshal(f, linkHeader(unix.ARPHRD_ETHER, 1, 0), netlink.Attribute{Type: unix.IFLA_IFNAME, Data: []byte("lo\x00")}))
	f.Add(answer(f, unix.ARPHRD_ETHER, 1, []attribute{{unix.IFLA_VF_MAC, vfMAC(0, nil)}, {unix.IFLA_VF_TRUST, vfSwitch(0, 1)}}))
	f.Add(marshal(f, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: unix.RTA_MULTIPATH, Data: []byte{9, 0, 0, 0, 1, 0, 0, 0, 7}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Neither must panic.
		if l, err := parseLink(data); err == nil && len(l.VFs) > len(data)/4 {
			t.Errorf("%d virtual functions in %d bytes", len(l.VFs), len(data))
		}
		if links, err := parseDefault(data); err == nil && len(links) > len(data)/4 {
			t.Errorf("%d links in %d bytes", len(links), len(data))
		}
	})
}

func TestParseEvent(t *testing.T) {
	link := marshal(t, linkHeader(unix.ARPHRD_ETHER, 7, 0), netlink.Attribute{Type: unix.IFLA_IFNAME, Data: []byte("eth7\x00")})
	oif := netlink.Attribute{Type: unix.RTA_OIF, Data: u32(3)}
	route := func(to byte) []byte { return marshal(t, routeHeader(unix.AF_INET, to, unix.RTN_UNICAST), oif) }
	eth7 := &Link{Index: 7, Name: "eth7", Encapsulation: "ether"}
	for name, c := range map[string]struct {
		kind uint16
		data []byte
		want Event
	}{
		"link":               {unix.RTM_NEWLINK, link, Event{Link: eth7}},
		"removed link":       {unix.RTM_DELLINK, link, Event{Link: eth7, Gone: true}},
		"half a link":        {unix.RTM_NEWLINK, link[:4], Event{Lost: true}},
		"default route":      {unix.RTM_NEWROUTE, route(0), Event{DefaultRoute: true}},
		"removed default":    {unix.RTM_DELROUTE, route(0), Event{DefaultRoute: true}},
		"another route":      {unix.RTM_NEWROUTE, route(24), Event{}},
		"half a route":       {unix.RTM_NEWROUTE, route(0)[:4], Event{Lost: true}},
		"default by objects": {unix.RTM_NEWROUTE, marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: nextHopID, Data: u32(9)}), Event{DefaultRoute: true}},
		"something else":     {unix.RTM_NEWADDR, link, Event{}},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Diff(t, "result", c.want, parseEvent(c.kind, c.data))
		})
	}
}

func watch(ctx context.Context, t *testing.T, on func(Event)) (testkit.NetNS, <-chan error) {
	ns, ended := testkit.NewNetNS(t), make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error { return Watch(ctx, on) })
	}()
	return ns, ended
}

func changes(t *testing.T, ns testkit.NetNS) *library.Handle {
	h := testkit.Value(library.NewHandleAt(netns.NsHandle(ns.File.Fd()), unix.NETLINK_ROUTE))(t)
	t.Cleanup(h.Close)
	return h
}

func bridge() *library.Bridge {
	return &library.Bridge{LinkAttrs: library.LinkAttrs{Index: 7, Name: "br7", TxQLen: -1}}
}

func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	events := make(chan Event, 1<<10)
	ns, ended := watch(ctx, t, func(e Event) { events <- e })
	await := func(what string, is func(Event) bool) {
		t.Helper()
		testkit.ReceiveUntil(t, what, events, is)
	}
	await("the start", func(e Event) bool { return e.Lost })
	h, br7 := changes(t, ns), bridge()
	of := func(e Event, name string) bool { return e.Link != nil && e.Link.Index == 7 && e.Link.Name == name }

	testkit.Must(t, h.LinkAdd(br7))
	await("a new link", func(e Event) bool { return of(e, "br7") && !e.Gone && e.Link.Kind == "bridge" })
	testkit.Must(t, h.LinkSetName(br7, "uplink7"))
	await("another name", func(e Event) bool { return of(e, "uplink7") })
	route := &library.Route{LinkIndex: 7, Scope: unix.RT_SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}
	testkit.Must(t, h.LinkSetUp(br7), h.RouteAdd(route))
	await("a default route", func(e Event) bool { return e.DefaultRoute })
	testkit.Must(t, h.RouteDel(route))
	await("that it was removed", func(e Event) bool { return e.DefaultRoute })
	testkit.Must(t, h.LinkDel(br7))
	await("that the link was removed", func(e Event) bool { return of(e, "uplink7") && e.Gone })

	cause := errors.New("enough")
	cancel(cause)
	if err := <-ended; !errors.Is(err, cause) {
		t.Errorf("it ended with %v", err)
	}
}

// A slow reader is notified that events are missing.
func TestOverflow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	flooded, listening, lost := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1<<10)
	first := true
	ns, ended := watch(ctx, t, func(e Event) {
		switch {
		case first:
			first = false
			close(listening)
			<-flooded
		case e.Lost:
			lost <- struct{}{}
		}
	})
	<-listening
	h, br7 := changes(t, ns), bridge()
	testkit.Must(t, h.LinkAdd(br7))
	for i := range 4 * queue / 1024 { // each change takes more than 1 KiB of the queue
		testkit.Must(t, h.LinkSetMTU(br7, 1400+i%2))
	}
	close(flooded)
	testkit.Receive(t, "that events were lost", lost)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
