package fence

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// A fence stays in force when the service of another release continues: with its
// record, its table, and the process that holds the table.
func TestUpgradeWithFencesInForce(t *testing.T) {
	t.Parallel()
	_, previous := features.BuildPrevious(t)
	for _, c := range []struct {
		name, first, second string
		ports               string // of the first service
	}{
		{"upgrade", previous, cleat, "10809"},
		{"downgrade", cleat, previous, "10809"},
		// The previous release confirmed a fence that covered no server; later ones
		// do not, and this case ends with it.
		{"upgrade and cover", previous, cleat, "4420"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			victim, other := s.host(1, 7), s.host(1, 8)
			disk := testkit.Value(storage.StartNBD(s.machine))(t)
			writer := func(id uint64, h *host) *storage.Writer {
				session, err := storage.NBDSession(id, s.dial(h, h.v4, storage.NBDPort))
				testkit.Must(t, err)
				w := storage.NewWriter(id, session, pace)
				t.Cleanup(w.Close)
				s.await(20, w)
				return w
			}
			fenced, unharmed := writer(1, victim), writer(2, other)
			service := s.serveArmed(c.first, nil, "--ports", c.ports)
			s.fence(service, []string{victimBlock}, fenced)
			covered := c.ports == "10809"
			region := func() []byte {
				_, region, err := storage.Newest(disk.Path, 1)
				testkit.Must(t, err)
				return region
			}
			before := region()
			testkit.Must(t, service.Stop())
			service = s.serveArmed(c.second, nil, "--ports", "10809")
			if err := s.holds(); err != nil {
				t.Error(err)
			}
			testkit.Must(t, s.listed(service, victimBlock))
			s.refused(victim, victim.v4, storage.NBDPort)
			if !covered {
				// The session that the first service left is ended by the second one.
				testkit.EventuallyNil(t, "the session of the fenced client ends", func() error {
					select {
					case <-fenced.Done():
						return nil
					default:
						return errors.New("it continues")
					}
				})
				before = region()
			}
			if c.second == cleat {
				s.checks(service, victim.v4.String(), "", "nbd-server (process ")
			}
			s.await(20, unharmed)
			s.fence(service, []string{victimBlock}) // by the same owner
			s.unfence(service, victimBlock)
			if !slices.Equal(before, region()) || bytes.Equal(before, make([]byte, len(before))) {
				t.Error("the fenced client's blocks have changed")
			}
			writer(3, victim)
			testkit.Must(t, s.listed(service))
		})
	}
}
