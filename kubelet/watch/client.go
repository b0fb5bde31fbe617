package watch

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// client speaks with one plugin over a connection that is there already.
type client struct {
	conn *grpc.ClientConn
	registration.RegistrationClient
}

// newClient takes the connection over. It is used once: when it breaks, the
// calls fail, and nothing is dialled behind the host's back.
func newClient(c net.Conn) (*client, error) {
	once := make(chan net.Conn, 1)
	once <- c
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-once:
				return c, nil
			default:
				return nil, net.ErrClosed
			}
		}))
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, RegistrationClient: registration.NewRegistrationClient(conn)}, nil
}
