package blocklist

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/volume"
)

// Cluster is a connection to a Ceph cluster. Denied: the user's capabilities do
// not allow the call.
type Cluster interface {
	// MonCommand runs a command of the monitors, in JSON, and returns its
	// output.
	MonCommand(ctx context.Context, cmd []byte) ([]byte, error)
	// OSDCommand runs a command of one OSD, in JSON, and returns its output.
	OSDCommand(ctx context.Context, osd int, cmd []byte) ([]byte, error)
	// PGCommand runs a command of the primary OSD of a placement group, such as
	// "2.1f", in JSON, and returns its output.
	PGCommand(ctx context.Context, pg string, cmd []byte) ([]byte, error)
	// WaitForLatestOSDMap returns when this connection has the newest map.
	WaitForLatestOSDMap(ctx context.Context) error
	// Watchers returns the clients that have the image of a volume open for
	// writing, except this process. NotFound: the volume does not exist.
	Watchers(ctx context.Context, id volume.ID) ([]Watcher, error)
}

// Watcher is a client instance, such as one mapped device, that has an image
// open.
type Watcher struct {
	Addr   netip.Addr
	Nonce  uint32
	Client uint64 // the cluster's number of the instance
}

// ParseWatcher parses the address of a client as Ceph prints it, such as
// 192.0.2.1:0/3710147553 or v1:[2001:db8::1]:0/12. Client is not part of it.
func ParseWatcher(address string) (Watcher, error) {
	w, _, err := parseAddress(address)
	return w, err
}

func parseAddress(address string) (w Watcher, port uint16, err error) {
	text := address
	for _, protocol := range []string{"v1:", "v2:", "any:"} {
		text = strings.TrimPrefix(text, protocol)
	}
	host, number, found := strings.Cut(text, "/")
	if !found {
		return w, 0, fmt.Errorf("address %q of a Ceph client has no nonce, expected IP:PORT/NONCE", address)
	}
	at, err := netip.ParseAddrPort(host)
	if err != nil {
		return w, 0, fmt.Errorf("address %q of a Ceph client is not IP:PORT/NONCE: %w", address, err)
	}
	nonce, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return w, 0, fmt.Errorf("nonce of the address %q of a Ceph client: %w", address, err)
	}
	return Watcher{Addr: at.Addr().Unmap().WithZone(""), Nonce: uint32(nonce)}, at.Port(), nil
}
