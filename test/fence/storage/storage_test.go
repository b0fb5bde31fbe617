package storage

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	rig.Main(m, map[string]func() int{RecordRole: ServeRecords}, func() error { return nil })
}

var (
	server = netip.MustParsePrefix("10.9.0.2/16")
	client = netip.MustParsePrefix("10.9.1.7/16")
)

// hosts returns a machine and a client with a cable between them.
func hosts(t *testing.T) (*rig.Machine, *rig.Namespace, rig.Cable) {
	t.Helper()
	network, machine, ns := rig.NewNetwork(t), rig.NewMachine(t), rig.NewNamespace(t)
	network.Attach(t, machine.Namespace, server)
	return machine, ns, network.Attach(t, ns, client)
}

func start(t *testing.T, ns *rig.Namespace, port uint16, begin func(net.Conn) (Session, error)) *Writer {
	t.Helper()
	conn := testkit.Value(ns.Dial(t.Context(), netip.AddrPortFrom(server.Addr(), port), netip.Addr{}))(t)
	session, err := begin(conn)
	if err != nil {
		_ = conn.Close()
		t.Fatal(err)
	}
	w := NewWriter(3, session, time.Millisecond)
	t.Cleanup(w.Close)
	return w
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestRecords(t *testing.T) {
	machine, ns, cable := hosts(t)
	records := testkit.Value(StartRecords(machine, 4420))(t)
	w := start(t, ns, 4420, func(c net.Conn) (Session, error) { return RecordSession(3, c), nil })
	testkit.Must(t, w.Await(within(t), 50))
	if waits := w.Waits(); len(waits) < 50 || waits[0] <= 0 {
		t.Errorf("%d waits, the shortest %v", len(waits), waits)
	}
	testkit.Must(t, cable.Disconnect(t.Context()))
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := w.Await(short, 200); err == nil {
		t.Error("writes are acknowledged without a cable")
	}
	got, err := records.Read()
	if err != nil || len(got) != 1 {
		t.Fatalf("records of %d writers, %v", len(got), err)
	}
	if last := got[3][len(got[3])-1].Number; last < w.Acked() || last >= w.Sent() {
		t.Errorf("the last record is %d, acknowledged %d, sent %d", last, w.Acked(), w.Sent())
	}
	testkit.Must(t, cable.Reconnect(t.Context()))
	if err := w.Await(within(t), 10); err != nil {
		t.Errorf("with the cable reconnected: %v", err)
	}
}

// A record that crosses a page is appended in more than one piece.
func TestReadDuringAppend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	one := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 3), 1), 5)
	testkit.Must(t, os.WriteFile(path, append(slices.Clone(one), one[:7]...), 0o600))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := readRecords(gone, path); err == nil || !strings.Contains(err.Error(), "7 bytes of a record") {
		t.Errorf("an unfinished record: %v, %v", got, err)
	}
	time.AfterFunc(20*time.Millisecond, func() {
		if file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err == nil {
			_, _ = file.Write(one[7:])
			_ = file.Close()
		}
	})
	want := map[uint64][]Record{3: {{3, 1, time.Unix(0, 5)}, {3, 1, time.Unix(0, 5)}}}
	got, err := readRecords(within(t), path)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

func TestDisks(t *testing.T) {
	for _, c := range []struct {
		name  string
		port  uint16
		start func(*rig.Machine) (*Disk, error)
		begin func(uint64, net.Conn) (Session, error)
	}{
		{"NBD", NBDPort, StartNBD, NBDSession},
		{"iSCSI", ISCSIPort, StartISCSI, ISCSISession},
	} {
		t.Run(c.name, func(t *testing.T) {
			machine, ns, _ := hosts(t)
			disk := testkit.Value(c.start(machine))(t)
			w := start(t, ns, c.port, func(conn net.Conn) (Session, error) { return c.begin(3, conn) })
			if err := w.Await(within(t), 200); err != nil {
				t.Fatalf("%v\n%s", err, disk.Log())
			}
			acked := w.Acked()
			newest, _, err := Newest(disk.Path, 3)
			if err != nil || newest < acked || newest > w.Sent() {
				t.Errorf("newest block %d (%v), acknowledged %d, sent %d", newest, err, acked, w.Sent())
			}
			if other, _, err := Newest(disk.Path, 4); err != nil || other != 0 {
				t.Errorf("another writer's blocks have %d, %v", other, err)
			}
		})
	}
}
