package vm

import (
	"context"
	"net"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
)

// Connect returns a client of the gRPC server at a UNIX socket of the guest; see
// testkit.Connect.
func (g *Guest) Connect(socket string) (*grpc.ClientConn, error) {
	return testkit.Connect(socket, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return g.Dial(ctx, "unix", socket) }))
}
