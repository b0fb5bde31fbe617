package netlinks

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const patience = 30 * time.Second

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
		"link that went":     {unix.RTM_DELLINK, link, Event{Link: eth7, Gone: true}},
		"half a link":        {unix.RTM_NEWLINK, link[:4], Event{Lost: true}},
		"default route":      {unix.RTM_NEWROUTE, route(0), Event{DefaultRoute: true}},
		"default that went":  {unix.RTM_DELROUTE, route(0), Event{DefaultRoute: true}},
		"another route":      {unix.RTM_NEWROUTE, route(24), Event{}},
		"half a route":       {unix.RTM_NEWROUTE, route(0)[:4], Event{Lost: true}},
		"default by objects": {unix.RTM_NEWROUTE, marshal(t, routeHeader(unix.AF_INET, 0, unix.RTN_UNICAST), netlink.Attribute{Type: nextHopID, Data: u32(9)}), Event{DefaultRoute: true}},
		"something else":     {unix.RTM_NEWADDR, link, Event{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, parseEvent(c.kind, c.data)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// elsewhere runs f on a thread with a network namespace of its own, which goes
// with the thread, and gives the namespace.
func elsewhere(t *testing.T, f func()) *os.File {
	t.Helper()
	made := make(chan *os.File, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the function
		var ns *os.File
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns, err = os.Open("/proc/thread-self/ns/net")
		}
		if err != nil {
			t.Errorf("make a network namespace: %v", err)
		}
		made <- ns
		if err == nil {
			f()
		}
	}()
	ns := <-made
	if ns == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// network changes what is in a namespace.
type network struct {
	t    *testing.T
	conn *netlink.Conn
}

func (n network) do(kind netlink.HeaderType, flags netlink.HeaderFlags, data []byte) {
	n.t.Helper()
	_, err := n.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Acknowledge | flags}, Data: data,
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n network) add(index uint32, name, kind string) {
	n.t.Helper()
	n.do(unix.RTM_NEWLINK, netlink.Create|netlink.Excl, marshal(n.t, linkHeader(0, index, 0),
		netlink.Attribute{Type: unix.IFLA_IFNAME, Data: []byte(name + "\x00")},
		netlink.Attribute{Type: unix.IFLA_LINKINFO, Data: marshal(n.t, nil, netlink.Attribute{Type: unix.IFLA_INFO_KIND, Data: []byte(kind + "\x00")})}))
}

func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	events, ended := make(chan Event, 1<<10), make(chan error, 1)
	ns := elsewhere(t, func() {
		ended <- Watch(ctx, func(e Event) { events <- e })
	})
	await := func(what string, is func(Event) bool) {
		t.Helper()
		late := time.After(patience)
		for {
			select {
			case e := <-events:
				if is(e) {
					return
				}
			case <-late:
				t.Fatalf("not heard: %s", what)
			}
		}
	}
	await("that it listens", func(e Event) bool { return e.Lost })
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(ns.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	n := network{t, conn}
	of := func(e Event, name string) bool { return e.Link != nil && e.Link.Index == 7 && e.Link.Name == name }

	n.add(7, "br7", "bridge")
	await("a new link", func(e Event) bool { return of(e, "br7") && !e.Gone && e.Link.Kind == "bridge" })
	n.do(unix.RTM_NEWLINK, 0, marshal(t, linkHeader(0, 7, 0), netlink.Attribute{Type: unix.IFLA_IFNAME, Data: []byte("uplink7\x00")}))
	await("another name", func(e Event) bool { return of(e, "uplink7") })
	up := linkHeader(0, 7, unix.IFF_UP)
	copy(up[12:], u32(unix.IFF_UP))
	n.do(unix.RTM_NEWLINK, 0, up)
	route := marshal(t, []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0},
		netlink.Attribute{Type: unix.RTA_OIF, Data: u32(7)})
	n.do(unix.RTM_NEWROUTE, netlink.Create, route)
	await("a default route", func(e Event) bool { return e.DefaultRoute })
	n.do(unix.RTM_DELROUTE, 0, route)
	await("that it went", func(e Event) bool { return e.DefaultRoute })
	n.do(unix.RTM_DELLINK, 0, linkHeader(0, 7, 0))
	await("that the link went", func(e Event) bool { return of(e, "uplink7") && e.Gone })

	cause := errors.New("enough")
	cancel(cause)
	if err := <-ended; !errors.Is(err, cause) {
		t.Errorf("it ended with %v", err)
	}
}

// Who reads slower than links change is told so.
func TestOverflow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	flooded, listening, lost, ended := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1<<10), make(chan error, 1)
	first := true
	ns := elsewhere(t, func() {
		ended <- Watch(ctx, func(e Event) {
			switch {
			case first:
				first = false
				close(listening)
				<-flooded
			case e.Lost:
				lost <- struct{}{}
			}
		})
	})
	<-listening
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: int(ns.Fd())})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	n := network{t, conn}
	n.add(7, "br7", "bridge")
	for i := range uint32(4 * queue / 1024) { // each change takes more than 1 KiB of the queue
		n.do(unix.RTM_NEWLINK, 0, marshal(t, linkHeader(0, 7, 0), netlink.Attribute{Type: unix.IFLA_MTU, Data: u32(1400 + i%2)}))
	}
	close(flooded)
	select {
	case <-lost:
	case <-time.After(patience):
		t.Error("nothing tells that events were lost")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
