package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
)

func newFenceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "fence",
		Short: "Fence clients of storage by their addresses, and unfence them",
		Long: `Fences clients of storage by their addresses (fence add) and unfences them (fence
rm). The workload of a failed or unreachable node, which may still write, can
start elsewhere only after the storage refuses that node.

A fence is complete when the command ends with 0: the client has no session, none
of its requests is accepted, also not later, and it gets no new session. Until
then it can be there in part: repeat the command. Fences outlive the server, and
end only by fence rm. Do that when the client was restarted or is off: until then
it can still hold old data that it would write.

The commands speak CSI-Addons on any driver's socket: that of cleat fence serve,
which protects any storage server of this machine, of cleat csi --addons-endpoint,
or of another driver (--endpoint).`,
		Example: `  cleat fence add 192.0.2.7 2001:db8::7
  cleat fence list
  cleat fence rm 192.0.2.7 2001:db8::7
  cleat fence add 192.0.2.0/24 --endpoint unix:///csi/csi-addons.sock -p clusterID=a --secret userKey=/etc/key`,
	}
	c.AddCommand(
		newFenceServeCommand(), newFenceAddCommand(), newFenceRemoveCommand(),
		newFenceListCommand(), newFenceClientsCommand(), newFenceDriverCommand(),
	)
	onlyHolds(c)
	return c
}

// fenceAsk has the flags of the commands that ask a fence service.
type fenceAsk struct {
	session
	target     client.Target
	parameters []string
	secrets    []string // KEY=FILE
}

// addTo adds the flags to one command, not to the group: fence serve is in it.
func (f *fenceAsk) addTo(c *cobra.Command) {
	f.target.Patience = 200 * time.Millisecond
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&f.target.Endpoint, "endpoint", defaultFenceEndpoint, "socket of the CSI-Addons service, any driver's; or HOST:PORT")
		e.StringVar(&f.target.TLS.Cert, "tls-cert", "", "certificate to show at HOST:PORT, a PEM file")
		e.StringVar(&f.target.TLS.Key, "tls-key", "", "its private key, a PEM file that not everybody may read")
		e.StringVar(&f.target.TLS.CA, "tls-ca", "", "authority that must have signed the server's certificate, a PEM file")
		e.StringVar(&f.target.ServerName, "tls-server-name", "", "name that the server's certificate is for, where that is not HOST")
		e.DurationVar(&f.timeout, "timeout", 3*time.Minute, "give up after this time; 0 is never. When it is not given, a service that is not there is given up after 3 s")
	})
}

// addRequestTo adds the flags that become part of a call.
func (f *fenceAsk) addRequestTo(c *cobra.Command) {
	c.Flags().StringArrayVarP(&f.parameters, "parameter", "p", nil, "a parameter of the driver, key=value; may be repeated. Together they are whose fence it is")
	c.Flags().StringArrayVar(&f.secrets, "secret", nil, "a secret that the driver wants, KEY=FILE; may be repeated. The file's last line end is left out")
}

// fenceCall asks a fence service.
type fenceCall func(ctx context.Context, c *client.Client, r client.Request) error

// ask repeats a call until its answer is final. Calls of the contract can be
// repeated, and continue.
func (f *fenceAsk) ask(cmd *cobra.Command, doing string, call fenceCall) error {
	if err := f.bind(); err != nil {
		return err
	}
	if err := f.target.Check(); err != nil {
		return err
	}
	var r client.Request
	var err error
	if r.Parameters, err = keyValues(f.parameters); err != nil {
		return err
	}
	if r.Secrets, err = readSecrets(f.secrets); err != nil {
		return err
	}
	absent := 3 * time.Second
	if f.env.Changed("timeout") {
		absent = math.MaxInt64
	}
	return f.run(cmd, doing, func(ctx context.Context, notice func(string)) error {
		c, err := client.Open(f.target)
		if err != nil {
			return err
		}
		err = retry(ctx, time.Second, notice, func(err error, past time.Duration) bool { return fenceCanChange(err, past, absent) },
			func(ctx context.Context) error { return explainFence(call(ctx, c, r)) })
		return errors.Join(err, c.Close())
	})
}

// fenceCanChange reports whether a repeat can have another result. A service
// that is absent is waited for, but not for ever.
func fenceCanChange(err error, past, absent time.Duration) bool {
	if errors.Is(err, client.ErrNobody) {
		return past < absent && !errors.Is(err, fs.ErrPermission)
	}
	kind := errs.KindOf(err)
	return kind == errs.Unavailable || kind == errs.Busy
}

// explainFence adds advice to an error.
func explainFence(err error) error {
	answer, answered := errors.AsType[*client.Error](err)
	switch {
	case !answered && errors.Is(err, client.ErrNobody):
		return advise(err, noServer(err, "cleat fence serve", "Start it, or name a driver's socket with --endpoint"))
	case !answered:
		return err
	case answer.Code == codes.Unimplemented && strings.Contains(answer.Message, "unknown service"):
		return advise(err, "no CSI-Addons is served there; a driver has a socket of its own for it, beside that of CSI")
	case answer.Code == codes.Unimplemented:
		return advise(err, "the driver does not serve that, or not in this mode; see what it announces with: cleat fence driver")
	case answer.Code == codes.InvalidArgument && strings.Contains(answer.Message, request.ForceParameter+"=true"):
		return advise(err, "--force does that")
	case answer.Code == codes.Unauthenticated:
		return advise(err, "give the secrets that it wants with --secret KEY=FILE")
	}
	return err
}

// readSecrets reads KEY=FILE, so that no secret is in an argument. No error has
// a value, nor the path: a user could have given the secret in its place.
func readSecrets(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, path, ok := strings.Cut(arg, "=")
		if !ok || key == "" || path == "" {
			return nil, errors.New("--secret takes KEY=FILE, as userKey=/etc/cleat/user.key: the name of the secret, and the file that holds its value")
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("--secret %s is given twice", key)
		}
		text, err := readInput(nil, path, 64<<10)
		text = bytes.TrimRight(text, "\r\n")
		if err == nil && len(text) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("--secret %s: its file cannot be read: %w", key, err)
		}
		out[key] = string(text)
	}
	return out, nil
}

// readInput reads a file of most bytes at most, or with stdin standard input as
// "-". Errors have no path.
func readInput(stdin io.Reader, path string, most int64) ([]byte, error) {
	in := stdin
	if stdin == nil || path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, pathless(err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it has more than %d bytes", most)
	}
	return text, pathless(err)
}

func pathless(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
