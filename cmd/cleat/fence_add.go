package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cli"
)

func newFenceAddCommand() *cobra.Command {
	var f fenceFlags
	return f.changeCommand("fenced", true, (*client.Client).Fence, "allow CIDRs that cover addresses of the server itself, or all addresses", &cobra.Command{
		Use:   "add CIDR...",
		Short: "Fence storage clients (FenceClusterNetwork)",
		Long: `Fences the clients with these addresses. When the command exits with 0, the clients
have no session, none of their requests is accepted, and they cannot open a
session. With any other exit code this is not certain, and completed fences remain
in effect: repeat the command.

A CIDR is a block such as 192.0.2.0/24 or 2001:db8::/64, or a single address. All
are validated before any is sent. Fence every address of the client: IPv4 and IPv6,
in all networks from which the storage can be reached. The command prints which
storage servers the fence covers; cleat fence check shows it without fencing.

The parameters identify the owner of a fence: unfence with the same parameters. A
CIDR that covers the server's own addresses, or all addresses, is refused without
--force (which other drivers might not support).`,
		Example: `  cleat fence add 192.0.2.7 2001:db8::7
  cleat fence add --from addresses.txt --timeout 10m
  cleat fence add 192.0.2.0/24 --endpoint storage-a:9070 --tls-cert me.crt --tls-key me.key --tls-ca ca.crt`,
	})
}

func newFenceRemoveCommand() *cobra.Command {
	var f fenceFlags
	var restarted bool
	c := f.changeCommand("unfenced", false, (*client.Client).Unfence, "unfence these CIDRs regardless of their owner, and before all sessions have ended", &cobra.Command{
		Use:     "rm CIDR...",
		Aliases: []string{"remove"},
		Short:   "Unfence storage clients (UnfenceClusterNetwork)",
		Long: `Unfences CIDRs. Write them as they were fenced, with the same parameters; see cleat
fence list. A CIDR that is not fenced is no error; one that was fenced with other
parameters, or that is part of a larger block, is refused. --force unfences exactly
these CIDRs without the parameters, also while sessions of the client have not
ended: requests that the client sent earlier can then still be executed.

Unfence a client only after it was restarted or powered off: a client that was only
fenced still holds old mounts and data, and would write them. A Ceph driver refuses
it while not all uses of volumes before the fence are known, as after an outage of
the controller: --restarted confirms that all these clients were restarted since
they were fenced, or are off. Nodes that report their boots need it only if they
stay off.`,
		Example: `  cleat fence rm 192.0.2.7 2001:db8::7
  cleat fence rm 192.0.2.7 --restarted
  cleat fence list -o json | jq -r '.[].cidr' | cleat fence rm --from -`,
		ValidArgsFunction: complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, args []string) (all []string, err error) {
			err = f.runE("", func(ctx context.Context, s fenceService) (_ cli.View, _ any, err error) {
				all, err = s.List(ctx, s.request)
				return nil, nil, err
			})(cmd, args)
			return all, err
		}),
	})
	c.Flags().BoolVar(&restarted, "restarted", false, "confirm that the clients were restarted since they were fenced, or are off")
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if restarted {
			if err := f.parameters.Set(request.RestartedParameter + "=true"); err != nil {
				return err
			}
		}
		return run(cmd, args)
	}
	return c
}

// changeCommand completes a command; done is the past participle of its action.
// covers also shows what the fences cover.
func (f *fenceFlags) changeCommand(done string, covers bool, change func(*client.Client, context.Context, client.Request, []netip.Prefix) error, forceUsage string, c *cobra.Command) *cobra.Command {
	var from string
	var force bool
	f.addTo(c)
	f.addRequestTo(c)
	c.Args = cobra.ArbitraryArgs // readBlocks validates them
	c.Flags().StringVar(&from, "from", "", "file with more CIDRs, one per line, # starts a comment; - reads standard input")
	c.Flags().BoolVar(&force, "force", false, forceUsage)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		blocks, err := readBlocks(cmd.InOrStdin(), from, args)
		if err != nil {
			return err
		}
		if force {
			if err := f.parameters.Set(request.ForceParameter + "=true"); err != nil {
				return err
			}
		}
		var names []string
		for _, b := range blocks {
			names = append(names, b.String())
		}
		unsure := false
		err = f.runE("waiting until all CIDRs are "+done, func(ctx context.Context, s fenceService) (cli.View, any, error) {
			err := change(s.Client, ctx, s.request, blocks)
			unsure = err != nil
			text, document := cli.Text(done+" "+summarize(names)), map[string]any{"endpoint": s.Endpoint(), done: names}
			if err != nil || !covers {
				return text, document, err
			}
			coverage, servers := s.covered(ctx, cmd, blocks)
			if len(coverage) > 0 {
				document["coverage"] = coverage
			}
			return cli.Views{text, coverageLines(coverage, servers)}, document, nil
		})(cmd, args)
		if unsure {
			return explainUnfinished(done, err)
		}
		return err
	}
	return c
}

// explainUnfinished says whether a failed change is certainly not in effect.
func explainUnfinished(done string, err error) error {
	switch kind := errs.KindOf(err); {
	case kind == errs.Invalid || kind == errs.Precondition || errors.Is(err, client.ErrNotServed):
		return fmt.Errorf("not %s: %w", done, err)
	}
	return fmt.Errorf("not certainly %s, repeat the command: %w", done, err)
}

func summarize(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%d blocks: %s and %d more", len(names), strings.Join(names[:most], ", "), len(names)-most)
}

// maxBlocksFile limits --from, in bytes: request.MaxBlocks with long comments.
const maxBlocksFile = 64 << 20

// readBlocks returns sorted blocks without duplicates, or all invalid ones in
// one error.
func readBlocks(stdin io.Reader, from string, args []string) (blocks []netip.Prefix, err error) {
	var wrong []string
	take := func(where, text string) {
		block, err := request.Block(text)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s%v", where, err))
		}
		blocks = append(blocks, block)
	}
	for _, arg := range args {
		take("", arg)
	}
	if from != "" {
		text, err := cli.ReadInput(stdin, from, maxBlocksFile)
		if err != nil {
			return nil, fmt.Errorf("--from %s: %w", from, err)
		}
		n, name := 0, from
		if name == "-" {
			name = "line"
		}
		for line := range strings.Lines(string(text)) {
			n++
			line, _, _ = strings.Cut(line, "#")
			if line = strings.TrimSpace(line); line != "" {
				take(fmt.Sprintf("%s:%d: ", name, n), line)
			}
		}
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	blocks = slices.Compact(blocks)
	const most = 8
	switch {
	case len(wrong) > most:
		return nil, errs.Errorf(errs.Invalid, "nothing was sent: %s; and %d more", strings.Join(wrong[:most], "; "), len(wrong)-most)
	case len(wrong) > 0:
		return nil, errs.Errorf(errs.Invalid, "nothing was sent: %s", strings.Join(wrong, "; "))
	case len(blocks) == 0 && from != "":
		return nil, fmt.Errorf("--from %s contains no CIDR: write one per line, for example 192.0.2.0/24", from)
	case len(blocks) == 0:
		return nil, errors.New("no CIDR is set: specify at least one CIDR, such as 192.0.2.0/24 or 2001:db8::7, or a file with --from")
	case len(blocks) > request.MaxBlocks:
		return nil, fmt.Errorf("%d CIDRs exceed the maximum of %d per call: split them, or use larger blocks", len(blocks), request.MaxBlocks)
	}
	return blocks, nil
}
