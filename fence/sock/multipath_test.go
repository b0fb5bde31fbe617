package sock

import (
	"context"
	"net"
	"testing"
	"time"
)

// A client that speaks MPTCP, which Go's servers allow by default, loses its path
// at once, but the kernel does not tell the server soon. So End waits for it.
func TestMultipath(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	multipath := start(t, "echo", serverV4)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientV4)}}
	dialer.SetMultipathTCP(true)
	conn, err := dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", net.JoinHostPort(serverV4, "4420"))
	must(t, err)
	defer conn.Close()
	if is, err := conn.(*net.TCPConn).MultipathTCP(); err != nil || !is {
		t.Fatalf("the connection is none of MPTCP: %v, %v", is, err)
	}
	alive(t, conn.(*net.TCPConn))
	found := servedBy(t, s, 1, clientV4+"/32")
	unfinished(t, s, found, "still open in "+multipath.String())
	multipath.kill()
	must(t, end(t, s, 30*time.Second, found))
	if left := sessions(t, s, clientV4+"/32"); len(left) != 0 {
		t.Errorf("after End: %v", left)
	}
}
