package hostfs

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// ONC RPC query to the port mapper (RFC 5531, RFC 1833).
const (
	portmapAddr = "127.0.0.1:111"
	statdBound  = time.Second // on this machine

	rpcVersion    = 2
	portmap       = 100000
	portmapVers   = 2
	portmapGet    = 3
	statd         = 100024
	statdVers     = 1
	ipProtocolUDP = 17
)

// statdRuns queries the port mapper for rpc.statd, which lockd notifies of
// every lock. An error: that is not known.
func statdRuns(ctx context.Context, portMapper string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statdBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "udp", portMapper)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return false, err
	}
	const id = 1 // a connected socket receives from its peer only
	if _, err := conn.Write(statdRequest(id)); err != nil {
		return false, err
	}
	buffer := make([]byte, 512)
	n, err := conn.Read(buffer)
	if errors.Is(err, unix.ECONNREFUSED) {
		return false, nil // no port mapper runs
	}
	return err == nil && hasPort(buffer[:n], id), err
}

// statdRequest encodes a PMAPPROC_GETPORT call without credentials.
func statdRequest(id uint32) []byte {
	var b []byte
	for _, word := range []uint32{
		id, 0, rpcVersion, portmap, portmapVers, portmapGet, 0, 0, 0, 0,
		statd, statdVers, ipProtocolUDP, 0,
	} {
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

// hasPort checks for a successful reply without verifier that has a port.
func hasPort(b []byte, id uint32) bool {
	want := []uint32{id, 1, 0, 0, 0, 0}
	if len(b) < 4*(len(want)+1) {
		return false
	}
	for i, word := range want {
		if binary.BigEndian.Uint32(b[4*i:]) != word {
			return false
		}
	}
	return binary.BigEndian.Uint32(b[4*len(want):]) != 0
}
