package fence

import (
	"bytes"
	"net"
	"testing"

	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// Storage servers of Debian: one with a process for each client, and one with
// its own writer threads.
func TestDisks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		port  uint16
		start func(*rig.Machine) (*storage.Disk, error)
		begin func(uint64, net.Conn) (storage.Session, error)
	}{
		{"NBD", storage.NBDPort, storage.StartNBD, storage.NBDSession},
		{"iSCSI", storage.ISCSIPort, storage.StartISCSI, storage.ISCSISession},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			disk := testkit.Value(c.start(s.machine))(t)
			service := s.serve()
			victim, neighbour := s.host(1, 7), s.host(2, 5)
			write := func(h *host, id uint64) *storage.Writer {
				conn := s.dial(h, h.v4, c.port)
				session, err := c.begin(id, conn)
				if err != nil {
					_ = conn.Close()
					t.Fatalf("%v\n%s", err, disk.Log())
				}
				w := storage.NewWriter(id, session, pace)
				t.Cleanup(w.Close)
				return w
			}
			w, n := write(victim, 1), write(neighbour, 2)
			s.await(100, w, n)
			when := s.fence(service, []string{"10.9.1.7/32"}, w)
			newest, before, err := storage.Newest(disk.Path, 1)
			if err != nil || newest > when.sent[w] || newest < w.Acked() {
				t.Errorf("newest block %d (%v); acknowledged %d, sent %d", newest, err, w.Acked(), when.sent[w])
			}
			s.refused(victim, victim.v4, c.port)
			s.await(100, n)
			s.unfence(service, "10.9.1.7/32")
			s.await(100, write(victim, 3), n)
			if _, after, err := storage.Newest(disk.Path, 1); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the fenced client's blocks have changed after the answer (%v)", err)
			}
		})
	}
}
