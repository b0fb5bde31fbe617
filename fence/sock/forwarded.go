package sock

import (
	"context"
	"fmt"
	"slices"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/conntrack"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/volume"
)

// forwarded lists connections of clients in the blocks to fenced ports that this
// machine forwards to another one or to another network namespace (DNAT). The
// server's sockets are not in this namespace, so their end is not seen.
//
// A connection counts until both sides have closed it, or one has reset it. In
// FIN_WAIT, CLOSE_WAIT and LAST_ACK the server can still have unread data of the
// client: conntrack does not show which side has closed, nor whether the server
// only has shut down its writes.
func (s *Sockets) forwarded(ctx context.Context, fenced *netipx.IPSet) ([]volume.Session, error) {
	own, err := netaddr.Own()
	if err != nil {
		return nil, errs.Errorf(errs.Internal, "%w", err)
	}
	flows, err := s.tracked.Translated(ctx)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "list the connections that this machine forwards: %w", err)
	}
	var found []volume.Session
	for _, f := range flows {
		switch {
		case !fenced.Contains(f.Client.Addr()), f.Called == f.Server, slices.Contains(own, f.Server.Addr()),
			!s.config.Ports.Contains(f.Called.Port()) && !s.config.Ports.Contains(f.Server.Port()),
			f.State == conntrack.TimeWait, f.State == conntrack.Closed:
			continue
		}
		found = append(found, volume.Session{Client: f.Client, Server: f.Called, Holder: fmt.Sprintf("a server at %s", f.Server)})
	}
	return found, nil
}
