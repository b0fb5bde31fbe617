package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cli"
)

func newFenceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "fence",
		Short: "Fence and unfence storage clients by IP address",
		Long: `Fences storage clients by IP address (fence add) and unfences them (fence rm). The
workload of a failed or unreachable node, which might still write, can start
elsewhere only after the storage refuses that node.

A fence is complete when the command exits with 0: the client has no session, none
of its requests is accepted, including delayed ones, and it cannot open a session.
Before, the fence can be partly in effect: repeat the command. Unfence a client
only when it was restarted or is powered off: until then it can hold stale data
that it would write. The commands use the CSI-Addons contract: with cleat fence
serve, cleat csi --addons-endpoint, or another driver (--endpoint).`,
		Example: `  cleat fence add 192.0.2.7 2001:db8::7
  cleat fence list
  cleat fence check 192.0.2.7
  cleat fence rm 192.0.2.7 2001:db8::7
  cleat fence add 192.0.2.0/24 --endpoint unix:///csi/csi-addons.sock -p clusterID=a --secret userKey=/etc/key`,
	}
	c.AddCommand(
		newFenceServeCommand(), newFenceAddCommand(), newFenceRemoveCommand(),
		newFenceListCommand(), newFenceCheckCommand(), newFenceClientsCommand(), newFenceDriverCommand(),
	)
	setUpGroup(c)
	return c
}

type fenceFlags struct {
	session
	target     client.Target
	parameters keyValues
	secrets    []string // KEY=FILE
}

// addTo adds the flags to one command, since fence serve is in the same group.
func (f *fenceFlags) addTo(c *cobra.Command) {
	f.target.Patience = 200 * time.Millisecond
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&f.target.Endpoint, "endpoint", defaultFenceEndpoint, "endpoint of the CSI-Addons service of any driver: unix:///PATH or HOST:PORT")
		e.StringVar(&f.target.TLS.Cert, "tls-cert", "", "client certificate for HOST:PORT, a PEM file")
		e.StringVar(&f.target.TLS.Key, "tls-key", "", "private key of the client certificate, a PEM file that is not world-readable")
		e.StringVar(&f.target.TLS.CA, "tls-ca", "", "CA certificate that verifies the server, a PEM file")
		e.StringVar(&f.target.ServerName, "tls-server-name", "", "server name in the certificate, if it is not HOST")
		e.DurationVar(&f.timeout, "timeout", 3*time.Minute, "time limit; 0 means none. "+startUsage)
	})
}

func (f *fenceFlags) addRequestTo(c *cobra.Command) {
	addParameters(c, &f.parameters, "key=value; can be repeated. All parameters together identify the owner of a fence")
	f.addSecretTo(c)
}

func (f *fenceFlags) addSecretTo(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.secrets, "secret", nil, "secret for the driver, KEY=FILE; can be repeated. Trailing line breaks of the file are removed")
}

type fenceService struct {
	*client.Client
	request client.Request
	notice  func(string)
}

func (f *fenceFlags) dial(_ context.Context, notice func(string)) (s fenceService, err error) {
	if err := f.target.Check(); err != nil {
		return s, err
	}
	s = fenceService{request: client.Request{Parameters: f.parameters}, notice: notice}
	if s.request.Secrets, err = readSecrets(f.secrets); err != nil {
		return s, err
	}
	s.Client, err = client.Open(f.target)
	return s, err
}

type fenceCall func(ctx context.Context, s fenceService) (cli.View, any, error)

// runE retries call until the result is final: the contract's calls are
// idempotent, and continue after a timeout.
func (f *fenceFlags) runE(doing string, call fenceCall) func(*cobra.Command, []string) error {
	return callServer(&f.session, f.bind, f.dial, doing, func(ctx context.Context, s fenceService, _ []string) (view cli.View, document any, err error) {
		again := func(err error, past time.Duration) bool { return fenceCanChange(err, past, f.starting) }
		err = retry(ctx, time.Second, s.notice, again, func(ctx context.Context) (err error) {
			view, document, err = call(ctx, s)
			return explainFence(err)
		})
		return view, document, err
	})
}

// fenceCanChange reports whether to retry; an unreachable service only for a
// limited time.
func fenceCanChange(err error, past, absent time.Duration) bool {
	if errors.Is(err, client.ErrNotServed) {
		return past < absent && !errors.Is(err, fs.ErrPermission)
	}
	kind := errs.KindOf(err)
	return kind == errs.Unavailable || kind == errs.Busy
}

func explainFence(err error) error {
	answer, answered := errors.AsType[*client.Error](err)
	switch {
	case !answered && errors.Is(err, client.ErrNotServed):
		return advise(err, noServer(err, "cleat fence serve", "Start it, or set --endpoint to the socket of a driver"))
	case !answered:
		return err
	case answer.Code == codes.Unimplemented && strings.Contains(answer.Message, "unknown service cleat."):
		return advise(err, "only cleat reports what its fences cover, since this release")
	case answer.Code == codes.Unimplemented && strings.Contains(answer.Message, "unknown service"):
		return advise(err, "this endpoint does not serve CSI-Addons; a driver serves it on a different socket than CSI")
	case answer.Code == codes.Unimplemented:
		return advise(err, "the driver does not support this call, or not in this mode; show its capabilities with: cleat fence driver")
	case answer.Code == codes.InvalidArgument && strings.Contains(answer.Message, request.ForceParameter+"=true"):
		return advise(err, "use --force")
	case answer.Code == codes.Unauthenticated:
		return advise(err, "set the required secrets with --secret KEY=FILE")
	}
	return err
}

// readSecrets reads KEY=FILE arguments: no secret is on the command line.
// Errors contain neither values nor paths, which can be a misplaced secret.
func readSecrets(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, path, ok := strings.Cut(arg, "=")
		if !ok || key == "" || path == "" {
			return nil, errors.New("--secret expects KEY=FILE, the name of the secret and the file with its value, for example userKey=/etc/cleat/user.key")
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("--secret %s is set twice", key)
		}
		text, err := cli.ReadInput(nil, path, 64<<10)
		text = bytes.TrimRight(text, "\r\n")
		if err == nil && len(text) == 0 {
			err = errors.New("the file is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("--secret %s: read the file: %w", key, err)
		}
		out[key] = string(text)
	}
	return out, nil
}

// fencedBlock has the CIDR in the driver's notation.
type fencedBlock struct {
	CIDR string `json:"cidr"`
	// The servers are the same for all blocks.
	Covers []coveredServer `json:"covers,omitempty"`
}

func newFenceListCommand() *cobra.Command {
	var f fenceFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List the fenced CIDRs (ListClusterFence)",
		Long: `Lists the fenced CIDRs as the driver reports them; cleat reports those that are
enforced now, and the storage servers that they cover. --parameter selects the CIDRs
fenced with these parameters. Sessions that delay a fence are printed on standard
error, with the process that holds them, nodes that cannot be unfenced without a
restart, and why fences are not confirmed.`,
		Example: `  cleat fence list
  cleat fence list -o json | jq -r '.[].cidr'`,
	}
	f.addTo(c)
	f.addRequestTo(c)
	c.RunE = f.runE("listing fences", func(ctx context.Context, s fenceService) (cli.View, any, error) {
		blocks, waiting, err := s.ListAll(ctx, s.request)
		if len(waiting.Ending) > 0 {
			c.PrintErrf("Fences in progress, not listed:\n  %s\nStop or restart these processes, or close the descriptors in them; the fence then continues automatically (docs/fencing.md).\n", strings.Join(waiting.Ending, "\n  "))
		}
		if len(waiting.Unseen) > 0 {
			c.PrintErrf("Not all uses of volumes before the fence are known:\n  %s\nRestart these nodes or turn them off, then unfence them, with --restarted unless their reboot is noticed (docs/ceph.md).\n", strings.Join(waiting.Unseen, "\n  "))
		}
		if err != nil {
			return nil, nil, err
		}
		coverage, servers := s.covered(ctx, c, nil)
		for _, problem := range coverageProblems(coverage) {
			c.PrintErrf("A fence is not confirmed: %s\n", problem)
		}
		slices.SortFunc(blocks, byBlock)
		t, all := cli.Table{Header: []string{"CIDR"}}, []fencedBlock{}
		if len(servers) > 0 {
			t.Header = append(t.Header, "COVERS")
		}
		for _, block := range blocks {
			row := []string{block, describeCovered(servers)}
			t.Rows = append(t.Rows, row[:len(t.Header)])
			all = append(all, fencedBlock{block, servers})
		}
		return t, all, nil
	})
	return c
}

// byBlock sorts invalid CIDRs last.
func byBlock(a, b string) int {
	x, errX := request.Block(a)
	y, errY := request.Block(b)
	switch {
	case errX == nil && errY == nil:
		return netip.Prefix.Compare(x, y)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return strings.Compare(a, b)
}

func newFenceClientsCommand() *cobra.Command {
	var f fenceFlags
	c := &cobra.Command{
		Use:   "clients",
		Short: "List the storage clients and their addresses (GetFenceClients)",
		Long: `Lists the storage clients that the driver knows, with the addresses to fence. A
driver on a node lists only that node: run the command there before the node fails.`,
		Example: `  cleat fence clients --endpoint unix:///run/cleat/addons/addons.sock
  cleat fence clients -o json | jq -r '.[].addresses[]'`,
	}
	f.addTo(c)
	f.addRequestTo(c)
	c.RunE = f.runE("listing clients", func(ctx context.Context, s fenceService) (cli.View, any, error) {
		all, err := s.Clients(ctx, s.request)
		t := cli.Table{Header: []string{"CLIENT", "ADDRESSES"}}
		for _, one := range all {
			t.Add(one.ID, one.Addresses)
		}
		return t, all, err
	})
	return c
}

type fenceDriver struct {
	client.Identity
	Ready        bool                `json:"ready"`
	Capabilities client.Capabilities `json:"capabilities"`
}

func newFenceDriverCommand() *cobra.Command {
	var f fenceFlags
	c := &cobra.Command{
		Use:     "driver",
		Short:   "Show the driver's identity and capabilities",
		Example: `  cleat fence driver --endpoint unix:///csi/csi-addons.sock`,
	}
	f.addTo(c)
	c.RunE = f.runE("querying the driver", func(ctx context.Context, s fenceService) (_ cli.View, _ any, err error) {
		var d fenceDriver
		if d.Identity, err = s.Identity(ctx); err != nil {
			return nil, nil, err
		}
		if d.Capabilities, err = s.Capabilities(ctx); err != nil {
			return nil, nil, err
		}
		d.Ready, err = s.Probe(ctx)
		t := cli.Table{Header: []string{"DRIVER", d.Name}}
		t.Add("Version", d.Version)
		t.Add("Ready", d.Ready)
		t.Add("Fences", d.Capabilities.Fence)
		t.Add("Lists its clients", d.Capabilities.Clients)
		t.Add("Announces", d.Capabilities.All)
		return t, d, err
	})
	return c
}
