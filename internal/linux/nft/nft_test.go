package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func network(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	testkit.Must(t, unix.Unshare(unix.CLONE_NEWNET))
}

func nftables(t testing.TB, script string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
}

func commit(t testing.TB, c *Conn, fill func(*Batch)) error {
	t.Helper()
	var b Batch
	fill(&b)
	return c.Commit(t.Context(), &b)
}

func addresses(table string) Set {
	return Set{Table: table, Name: "s", KeyType: KeyIPv4, KeyLen: 4, Flags: Intervals}
}

func TestBatchIsWholeOrNothing(t *testing.T) {
	network(t)
	c := testkit.Open(Dial())(t)
	err := commit(t, c, func(b *Batch) {
		b.AddTable("a")
		b.AddSet(addresses("a"))
		b.AddChain(Chain{Table: "a", Name: "c", Type: "nosuch", Policy: Accept})
		b.DeleteTable("missing")
	})
	refused, ok := errors.AsType[*Error](err)
	if !ok || refused.Errno != unix.ENOENT || refused.What != "add chain c of table inet a" {
		t.Errorf("got %#v (%v)", refused, err)
	}
	testkit.WantError(t, "half of the batch was made", testkit.Err(c.Table(t.Context(), "a")), unix.ENOENT)
	var b Batch
	b.AddTable("a")
	testkit.Must(t, c.Check(t.Context(), &b))
	testkit.WantError(t, "a check has made it", testkit.Err(c.Table(t.Context(), "a")), unix.ENOENT)
	ended := testkit.Canceled(t)
	testkit.WantError(t, "a cancelled commit", c.Commit(ended, &b), context.Canceled)
	testkit.WantError(t, "a cancelled commit has made it", testkit.Err(c.Table(t.Context(), "a")), unix.ENOENT)
	testkit.Must(t, c.Commit(t.Context(), &b), c.Commit(t.Context(), &Batch{}))
}

func TestKernelsWords(t *testing.T) {
	network(t)
	c := testkit.Open(Dial())(t)
	// A lookup in a set with another key length, or in a missing set.
	err := commit(t, c, func(b *Batch) {
		b.SetTable("a", 0x80)
	})
	if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), "table inet a with flags 0x80") {
		t.Errorf("got %v", err)
	}
	a, err := parseAnswer(netlink.Message{
		Header: netlink.Header{Flags: netlink.Capped | netlink.AcknowledgeTLVs},
		Data:   append(append(binary.NativeEndian.AppendUint32(nil, ^uint32(0)), make([]byte, 16)...), 9, 0, unix.NLMSGERR_ATTR_MSG, 0, 'w', 'h', 'y', '?', 0, 0, 0, 0),
	})
	if want := (answer{unix.EPERM, "why?"}); err != nil || a != want {
		t.Errorf("got %v, %v, want %v", a, err, want)
	}
	// A chain of a hook that does not exist.
	err = commit(t, c, func(b *Batch) {
		b.AddTable("a")
		b.AddChain(Chain{Table: "a", Name: "c", Type: "filter", Hook: 99, Policy: Accept})
	})
	if !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("got %v", err)
	}
}

func TestOwner(t *testing.T) {
	network(t)
	a, other := testkit.Open(Dial())(t), testkit.Open(Dial())(t)
	own := func(b *Batch) { b.SetTable("a", Owner|Persist) }
	testkit.Must(t, commit(t, a, own))
	check := func(when string, flags, owner uint32) {
		t.Helper()
		got, err := other.Table(t.Context(), "a")
		if want := (Table{Name: "a", Flags: flags, Owner: owner}); err != nil || got != want {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
	}
	check("made", Owner|Persist, a.Port())
	testkit.WantError(t, "another socket took it", commit(t, other, own), unix.EPERM, "only the owner of a table")
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Errorf("flush: %v: %s", err, out)
	}
	check("flushed by another process", Owner|Persist, a.Port())

	// Owned while one descriptor is open.
	f := testkit.Value(a.File())(t)
	testkit.Must(t, a.Close())
	check("held", Owner|Persist, a.Port())
	taken := testkit.Value(FromFile(f))(t)
	testkit.Must(t, f.Close())
	if taken.Port() != a.Port() {
		t.Errorf("the port went from %d to %d", a.Port(), taken.Port())
	}
	testkit.Must(t, commit(t, taken, func(b *Batch) { own(b); b.AddSet(addresses("a")); b.FlushSet("a", "s") }))
	testkit.Must(t, taken.Close())
	got, err := other.Table(t.Context(), "a")
	if err != nil || got.Flags != Persist || got.Owner != 0 || got.Use != 1 {
		t.Errorf("without an owner: %+v, %v", got, err)
	}
	testkit.Must(t, commit(t, other, own))
	testkit.Must(t, commit(t, other, func(b *Batch) { b.AddTable("a"); b.DeleteTable("a"); b.SetTable("a", 0) }))
	testkit.WantError(t, "a table made without persist was owned", commit(t, other, own), unix.EOPNOTSUPP)
}

func TestNamespaces(t *testing.T) {
	network(t)
	a, b := testkit.Open(Dial())(t), testkit.Open(Dial())(t)
	testkit.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	c := testkit.Open(Dial())(t)
	numbers := map[*Conn]uint64{}
	for _, conn := range []*Conn{a, b, c} {
		n := testkit.Value(conn.Namespace())(t)
		numbers[conn] = n
	}
	if numbers[a] != numbers[b] || numbers[a] == numbers[c] || numbers[a] == 0 {
		t.Errorf("got %v", numbers)
	}
}

func TestOtherSocketsAreRefused(t *testing.T) {
	network(t)
	u := testkit.Open(net.ListenUDP("udp", &net.UDPAddr{}))(t)
	f := testkit.Open(u.File())(t)
	testkit.WantError(t, "a UDP socket", testkit.Err(FromFile(f)), nil, "not a netlink socket of nf_tables")
	null := testkit.Open(os.Open(os.DevNull))(t)
	if _, err := FromFile(null); !errors.Is(err, unix.ENOTSOCK) && !errors.Is(err, unix.EPERM) {
		t.Errorf("no socket: %v", err)
	}
}

// Rules of the nft command.
func TestReadBack(t *testing.T) {
	network(t)
	c := testkit.Open(Dial())(t)
	nftables(t, `
table inet a {
	set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 255.255.255.255 }; }
	set p { type inet_service; timeout 1h; elements = { 80 }; }
	chain c {
		type filter hook input priority 7; policy drop;
		meta nfproto ipv4 ip saddr @s counter drop
		meta nfproto ipv4 ip saddr != @s accept
		meta nfproto != ipv4 drop
		meta mark set 5
		reject
	}
	chain plain { }
}
table inet b {
	chain c { drop; }
}
`)
	table, err := c.Table(t.Context(), "a")
	if want := (Table{Name: "a", Use: 4}); err != nil || table != want {
		t.Errorf("%+v, %v", table, err)
	}
	chain, err := c.Chain(t.Context(), "a", "c")
	if want := (Chain{Table: "a", Name: "c", Type: "filter", Hook: HookInput, Priority: 7, Policy: Drop, Flags: BaseChain}); err != nil || chain != want {
		t.Errorf("%+v, %v", chain, err)
	}
	set, err := c.Set(t.Context(), "a", "p")
	if want := (Set{Table: "a", Name: "p", KeyType: KeyPort, KeyLen: 2, Flags: unix.NFT_SET_TIMEOUT, Timeout: 3600_000}); err != nil || set != want {
		t.Errorf("%+v, %v", set, err)
	}
	checkRules(t, c)
	elements, err := c.Elements(t.Context(), "a", "p")
	if err != nil || len(elements) != 1 || elements[0].Odd == "" {
		t.Errorf("an element that will go: %+v, %v", elements, err)
	}
	elements, err = c.Elements(t.Context(), "a", "s")
	found := map[string]bool{}
	for _, e := range elements {
		found[net.IP(e.Key).String()] = e.End
	}
	if diff := cmp.Diff(map[string]bool{"0.0.0.0": true, "10.0.0.0": false, "11.0.0.0": true, "255.255.255.255": false}, found); err != nil || diff != "" {
		t.Errorf("%v; want-, got+:\n%s", err, diff)
	}
	for _, read := range []func() error{
		func() error { _, err := c.Chain(t.Context(), "a", "none"); return err },
		func() error { _, err := c.Set(t.Context(), "a", "none"); return err },
		func() error { _, err := c.Elements(t.Context(), "a", "none"); return err },
	} {
		testkit.WantError(t, "what is not there", read(), unix.ENOENT)
	}
}

func checkRules(t *testing.T, c *Conn) {
	t.Helper()
	rules := testkit.Value(c.Rules(t.Context(), "a"))(t)
	ip := []Expression{Meta{MetaFamily}, Compare{"\x02"}, Payload{NetworkHeader, 12, 4}}
	with := func(more ...Expression) Rule {
		return Rule{Table: "a", Chain: "c", Expressions: append(ip[:3:3], more...)}
	}
	want := []Rule{
		with(Lookup{"s"}, Counter{}, Verdict{Drop}),
		with(Other{"lookup"}, Verdict{Accept}),
		{Table: "a", Chain: "c", Expressions: []Expression{Meta{MetaFamily}, Other{"cmp"}, Verdict{Drop}}},
		{Table: "a", Chain: "c", Expressions: []Expression{Other{"immediate"}, Other{"meta"}}},
		{Table: "a", Chain: "c", Expressions: []Expression{Other{"reject"}}},
	}
	testkit.Diff(t, "result", want, rules)
}

// Unread answers and an abandoned dump do not disturb later requests.
func TestStaleAnswers(t *testing.T) {
	network(t)
	c := testkit.Open(Dial())(t)
	var all []Element
	for i := range 20000 {
		all = append(all, Element{Key: binary.BigEndian.AppendUint32(nil, uint32(i*4))}, Element{Key: binary.BigEndian.AppendUint32(nil, uint32(i*4+1)), End: true})
	}
	testkit.Must(t, commit(t, c, func(b *Batch) {
		b.AddTable("a")
		b.AddSet(addresses("a"))
		b.AddElements("a", "s", all)
	}))
	for range 3 {
		data := testkit.Value(encode(func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_SET_ELEM_LIST_TABLE, "a")
			ae.String(unix.NFTA_SET_ELEM_LIST_SET, "s")
		}))(t)
		testkit.Must(t, c.send(t.Context(), []netlink.Message{message(unix.NFT_MSG_GETSETELEM, netlink.Dump, data)}))
		if elements, err := c.Elements(t.Context(), "a", "s"); err != nil || len(elements) != len(all) {
			t.Fatalf("%d elements, %v", len(elements), err)
		}
		testkit.Must(t, c.send(t.Context(), []netlink.Message{message(unix.NFT_MSG_GETTABLE, netlink.Acknowledge, nil)}))
		testkit.Must(t, commit(t, c, func(b *Batch) { b.FlushSet("a", "s"); b.AddElements("a", "s", all) }))
	}
}

func TestMonitor(t *testing.T) {
	network(t)
	m, err := Watch()
	testkit.Must(t, err)
	defer m.Close()
	c := testkit.Open(Dial())(t)
	testkit.Must(t, commit(t, c, func(b *Batch) { b.AddTable("a") }))
	nftables(t, "table ip x { }\ntable inet b { chain c { drop; }; }\n")
	var events []Event
	for len(events) < 4 {
		events, err = m.Read(t.Context(), events)
		testkit.Must(t, err)
	}
	if events[0] != (Event{"a", c.Port()}) || events[1].Table != "b" || events[1].Port == c.Port() || events[3].Table != "b" {
		t.Errorf("got %+v", events)
	}
	testkit.Must(t, m.conn.sock.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
	for range 100 {
		testkit.Must(t, commit(t, c, func(b *Batch) { b.AddTable("a"); b.DeleteTable("a"); b.AddTable("a") }))
	}
	for err == nil {
		_, err = m.Read(t.Context(), nil)
	}
	if !errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for err = nil; err == nil; {
		_, err = m.Read(ctx, nil)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at the end of its context: %v", err)
	}
}

// No panic, and recognized expressions are unchanged when encoded again.
func FuzzDecode(f *testing.F) {
	for _, e := range []Expression{Meta{1}, Compare{"x"}, Payload{1, 2, 3}, Lookup{"s"}, Counter{1, 2}, Verdict{Drop}, Other{"x"}} {
		data := testkit.Value(encode(func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_EXPR_NAME, e.name())
			nested(ae, unix.NFTA_EXPR_DATA, e.encode)
		}))(f)
		f.Add(data)
		f.Add(appendMessage(nil, message(unix.NFT_MSG_NEWRULE, 0, data)))
	}
	f.Add(appendMessage(nil, netlink.Message{Header: netlink.Header{Type: netlink.Error, Flags: netlink.AcknowledgeTLVs}, Data: make([]byte, 40)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if e, err := parseExpression(data); err == nil {
			checkExpression(t, e)
		}
		messages, err := parseMessages(data)
		if err != nil {
			return
		}
		for _, m := range messages {
			_, _ = parseAnswer(m)
			_, _ = parseEvent(m)
			_, _ = parseTable(m.Data)
			_, _ = parseChain(m.Data)
			_, _ = parseSet(m.Data)
			_, _ = parseRule(m.Data)
			_, _ = parseElements(nil, m.Data)
		}
	})
}

func checkExpression(t *testing.T, e Expression) {
	if _, other := e.(Other); other {
		return
	}
	data, err := encode(func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_EXPR_NAME, e.name())
		nested(ae, unix.NFTA_EXPR_DATA, e.encode)
	})
	if err != nil {
		return // longer than an attribute can be
	}
	if again, err := parseExpression(data); err != nil || again != e {
		t.Errorf("%#v, written, is %#v (%v)", e, again, err)
	}
}
