package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
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
	var b fenceBlocks
	var force bool
	c := &cobra.Command{
		Use:   "add CIDR...",
		Short: "Cut clients off",
		Long: `Cuts the clients with these addresses off from the storage. When it ends with 0
they are: no session is left, nothing that they send is taken, and they get no
new session. Any other end says that this is not certain; what has been reached
by then stays. Repeat the command.

A CIDR is a block such as 192.0.2.0/24 or 2001:db8::/64; an address alone is a
block of one. All are checked before any is sent. Fence every address of the
client: IPv4 and IPv6, on every network from which the storage can be reached.

The parameters are whose fence it is: only with the same ones can it be taken
away again. What covers the server's own addresses, or everything, is refused
unless --force insists (which a driver of others may not know).`,
		Example: `  cleat fence add 192.0.2.7 2001:db8::7
  cleat fence add --from addresses.txt --timeout 10m
  cleat fence add 192.0.2.0/24 --endpoint storage-a:9070 --tls-cert me.crt --tls-key me.key --tls-ca ca.crt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			blocks, err := b.read(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			f.insist(force)
			return f.run(cmd, "fencing "+count(len(blocks), "block"), func(ctx context.Context, s *fenceService) error {
				return f.change(ctx, cmd, s, "fenced", s.Fence, blocks)
			})
		},
	}
	f.add(c)
	f.addRequest(c)
	b.add(c)
	c.Flags().BoolVar(&force, "force", false, "fence also what covers addresses of the server itself, or everything")
	return c
}

func newFenceRemoveCommand() *cobra.Command {
	var f fenceAsk
	var b fenceBlocks
	var force bool
	c := &cobra.Command{
		Use:     "rm CIDR...",
		Aliases: []string{"remove"},
		Short:   "Let clients in again",
		Long: `Takes fences away. Name the blocks as they were fenced, with the same parameters;
cleat fence list shows them. A block that is not fenced is no error; one that
another parameter set has fenced, or that lies in another block, is refused.
--force lifts just these blocks whoever fenced them, when those parameters are
lost, and also where sessions of the client do not end: what it sent before may
then still be carried out.

Do so only when the client has been restarted, or is surely off: one that was
merely cut off still holds mounts and data of before, and would write them.`,
		Example: `  cleat fence rm 192.0.2.7 2001:db8::7
  cleat fence list -o json | jq -r '.[].cidr' | cleat fence rm --from -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			blocks, err := b.read(cmd.InOrStdin(), args)
			if err != nil {
				return err
			}
			f.insist(force)
			return f.run(cmd, "unfencing "+count(len(blocks), "block"), func(ctx context.Context, s *fenceService) error {
				return f.change(ctx, cmd, s, "unfenced", s.Unfence, blocks)
			})
		},
		ValidArgsFunction: f.fenced,
	}
	f.add(c)
	f.addRequest(c)
	b.add(c)
	c.Flags().BoolVar(&force, "force", false, "unfence these blocks whoever fenced them, and before all sessions have ended")
	return c
}

// insist adds the parameter that is no part of whose fence it is.
func (f *fenceAsk) insist(force bool) {
	if force {
		f.parameters = append(f.parameters, request.ForceParameter+"=true")
	}
}

// fenceChange is a call that fences or unfences.
type fenceChange func(context.Context, client.Request, []netip.Prefix) error

// change asks until it is done and says so. done is "fenced" or "unfenced".
func (f *fenceAsk) change(ctx context.Context, cmd *cobra.Command, s *fenceService, done string, call fenceChange, blocks []netip.Prefix) error {
	err := s.until(ctx, func(ctx context.Context) error { return call(ctx, s.request, blocks) })
	if err != nil {
		return unfinished(done, err)
	}
	names := make([]string, len(blocks))
	for i, b := range blocks {
		names[i] = b.String()
	}
	if f.output != cli.FormatTable {
		return f.print(cmd, cli.Table{}, map[string]any{"endpoint": s.Endpoint(), done: names})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", done, some(names))
	return err
}

// unfinished says what an error means for who has to decide what to start now.
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

// fenceBlocks reads blocks from arguments and a file.
type fenceBlocks struct{ from string }

func (b *fenceBlocks) add(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs // read checks them
	c.Flags().StringVar(&b.from, "from", "", "file with more blocks, one on each line, # begins a comment; - is standard input")
}

// read returns the blocks, sorted, each once. All that is wrong is told at once.
func (b *fenceBlocks) read(stdin io.Reader, args []string) ([]netip.Prefix, error) {
	var found blockList
	for _, arg := range args {
		found.take("", arg)
	}
	if b.from != "" {
		if err := b.readFile(stdin, &found); err != nil {
			return nil, fmt.Errorf("--from %s: %w", b.from, err)
		}
	}
	switch {
	case len(found.wrong) > 0:
		return nil, found.error()
	case len(found.blocks) == 0 && b.from != "":
		return nil, fmt.Errorf("--from %s names no block: write one CIDR on each line, as 192.0.2.0/24", b.from)
	case len(found.blocks) == 0:
		return nil, errors.New("name at least one CIDR, as 192.0.2.0/24 or 2001:db8::7, or a file of them with --from")
	}
	slices.SortFunc(found.blocks, netip.Prefix.Compare)
	blocks := slices.Compact(found.blocks)
	if len(blocks) > request.MaxBlocks {
		return nil, fmt.Errorf("%d blocks are more than the %d that one call takes: divide them, or name larger blocks", len(blocks), request.MaxBlocks)
	}
	return blocks, nil
}

func (b *fenceBlocks) readFile(stdin io.Reader, found *blockList) error {
	in, name := stdin, "line"
	if b.from != "-" {
		f, err := os.Open(b.from)
		if err != nil {
			return pathless(err)
		}
		defer func() { _ = f.Close() }()
		in, name = f, b.from
	}
	lines := bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text != "" {
			found.take(fmt.Sprintf("%s:%d: ", name, n), text)
		}
	}
	return lines.Err()
}

// blockList collects blocks and what is none.
type blockList struct {
	blocks []netip.Prefix
	wrong  []string
}

func (l *blockList) take(where, text string) {
	block, err := request.Block(text)
	if err != nil {
		l.wrong = append(l.wrong, fmt.Sprintf("%s%v", where, err))
		return
	}
	l.blocks = append(l.blocks, block)
}

func (l *blockList) error() error {
	const most = 8
	more := ""
	if n := len(l.wrong) - most; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return errs.Errorf(errs.Invalid, "nothing was sent: %s%s", strings.Join(l.wrong[:min(len(l.wrong), most)], "; "), more)
}
