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
	var f fenceAsk
	return f.changeCommand("fenced", (*client.Client).Fence, "fence also what covers addresses of the server itself, or everything", &cobra.Command{
		Use:   "add CIDR...",
		Short: "Fence clients (FenceClusterNetwork)",
		Long: `Fences the clients with these addresses. When it ends with 0 no session is left,
none of their requests is accepted, and they get no new session. Any other exit
code says that this is not certain; what is fenced by then stays. Repeat the
command.

A CIDR is a block such as 192.0.2.0/24 or 2001:db8::/64, or an address alone. All
are checked before any is sent. Fence every address of the client: IPv4 and IPv6,
in every network from which the storage can be reached.

The parameters say whose fence it is: only the same ones unfence it. A block that
covers the server's own addresses, or everything, is refused without --force
(which other drivers might not know).`,
		Example: `  cleat fence add 192.0.2.7 2001:db8::7
  cleat fence add --from addresses.txt --timeout 10m
  cleat fence add 192.0.2.0/24 --endpoint storage-a:9070 --tls-cert me.crt --tls-key me.key --tls-ca ca.crt`,
	})
}

func newFenceRemoveCommand() *cobra.Command {
	var f fenceAsk
	return f.changeCommand("unfenced", (*client.Client).Unfence, "unfence these blocks whoever fenced them, and before all sessions have ended", &cobra.Command{
		Use:     "rm CIDR...",
		Aliases: []string{"remove"},
		Short:   "Unfence clients (UnfenceClusterNetwork)",
		Long: `Unfences blocks. Name them as they were fenced, with the same parameters; cleat
fence list shows them. A block that is not fenced is no error; one that other
parameters fenced, or that lies in another block, is refused. --force unfences
just these blocks whoever fenced them, when those parameters are lost, and also
where sessions of the client do not end: what it sent before can then still be
executed.

Do so only when the client was restarted, or is off: one that was only fenced
still holds old mounts and data, and would write them.`,
		Example: `  cleat fence rm 192.0.2.7 2001:db8::7
  cleat fence list -o json | jq -r '.[].cidr' | cleat fence rm --from -`,
		ValidArgsFunction: complete(cobra.ShellCompDirectiveNoFileComp, func(cmd *cobra.Command, args []string) (all []string, err error) {
			err = f.ask("", func(ctx context.Context, s fenceService) (_ cli.View, _ any, err error) {
				all, err = s.List(ctx, s.request)
				return nil, nil, err
			})(cmd, args)
			return all, err
		}),
	})
}

// changeCommand completes a command that fences or unfences blocks; done is the
// word for what it did.
func (f *fenceAsk) changeCommand(done string, change func(*client.Client, context.Context, client.Request, []netip.Prefix) error, forceUsage string, c *cobra.Command) *cobra.Command {
	var from string
	var force bool
	f.addTo(c)
	f.addRequestTo(c)
	c.Args = cobra.ArbitraryArgs // readBlocks checks them
	c.Flags().StringVar(&from, "from", "", "file with more blocks, one on each line, # begins a comment; - is standard input")
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
		err = f.ask("waiting until they are "+done, func(ctx context.Context, s fenceService) (cli.View, any, error) {
			err := change(s.Client, ctx, s.request, blocks)
			unsure = err != nil
			return cli.Text(done + " " + some(names)), map[string]any{"endpoint": s.Endpoint(), done: names}, err
		})(cmd, args)
		if unsure {
			return unfinished(done, err)
		}
		return err
	}
	return c
}

// unfinished says what an error means for the decision what can start elsewhere.
func unfinished(done string, err error) error {
	switch kind := errs.KindOf(err); {
	case kind == errs.Invalid || kind == errs.Precondition || errors.Is(err, client.ErrNobody):
		return fmt.Errorf("not %s: %w", done, err)
	}
	return fmt.Errorf("not surely %s, repeat the command: %w", done, err)
}

// some are the first of many names.
func some(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%d blocks: %s and %d more", len(names), strings.Join(names[:most], ", "), len(names)-most)
}

// maxBlocksFile bounds --from, in bytes: the most blocks with long comments.
const maxBlocksFile = 64 << 20

// readBlocks returns the blocks of arguments and of a file, sorted, each once. One
// error has all mistakes.
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
		return nil, fmt.Errorf("--from %s names no block: write one CIDR on each line, as 192.0.2.0/24", from)
	case len(blocks) == 0:
		return nil, errors.New("name at least one CIDR, as 192.0.2.0/24 or 2001:db8::7, or a file of them with --from")
	case len(blocks) > request.MaxBlocks:
		return nil, fmt.Errorf("%d blocks are more than the %d that one call takes: divide them, or name larger blocks", len(blocks), request.MaxBlocks)
	}
	return blocks, nil
}
