package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
)

// blockDocument is a list of ranges as programs read it.
type blockDocument struct {
	Base     string      `json:"base,omitempty"`
	Snapshot string      `json:"snapshot"`
	Size     int64       `json:"sizeBytes"`
	Listed   int64       `json:"listedBytes"`
	Ranges   []byteRange `json:"ranges"`
}

type byteRange struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

func (b *blockDocument) add(p client.BlockPage) error {
	b.Size = p.Size
	for _, r := range p.Ranges {
		b.Listed += r.Length
		if n := len(b.Ranges); n > 0 && b.Ranges[n-1].Offset+b.Ranges[n-1].Length == r.Offset {
			b.Ranges[n-1].Length += r.Length // drivers of the fixed style send every block by itself
			continue
		}
		b.Ranges = append(b.Ranges, byteRange{r.Offset, r.Length})
	}
	return nil
}

func newVolumeChangedBlocksCommand(f *driverFlags) *cobra.Command {
	var from cli.Size
	c := &cobra.Command{
		Use:   "changed-blocks [BASE] SNAPSHOT",
		Short: "List which bytes differ between two snapshots, or which one snapshot uses",
		Long: `Lists the ranges of bytes that differ from the snapshot BASE to the later SNAPSHOT
of the same volume: what an incremental backup must copy. With one snapshot it
lists the ranges that may hold data: what a full backup must copy.`,
		Example: `  cleat volume changed-blocks monday tuesday
  cleat volume changed-blocks monday -o json`,
		Args:              cobra.MatchAll(atLeast("a SNAPSHOT"), cobra.MaximumNArgs(2)),
		ValidArgsFunction: f.names(snapshotNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, "listing blocks", func(ctx context.Context, d *client.Driver) error {
				doc := blockDocument{Snapshot: args[len(args)-1], Ranges: []byteRange{}}
				var err error
				if len(args) == 1 {
					err = d.Allocated(ctx, doc.Snapshot, int64(from), doc.add)
				} else {
					doc.Base = args[0]
					err = d.Delta(ctx, doc.Base, doc.Snapshot, int64(from), doc.add)
				}
				if errors.Is(err, errs.Precondition) {
					return fmt.Errorf("%w; what all of it holds tells: %s %s", err, cmd.CommandPath(), doc.Snapshot)
				}
				if err != nil {
					return err
				}
				return f.printBlocks(cmd, doc)
			})
		},
	}
	c.Flags().Var(&from, "from", "first byte to look at, to continue an interrupted list")
	return c
}

func (f *driverFlags) printBlocks(cmd *cobra.Command, doc blockDocument) error {
	t := cli.Table{Header: []string{"OFFSET", "LENGTH", "SIZE"}}
	for _, r := range doc.Ranges {
		t.Rows = append(t.Rows, []string{fmt.Sprint(r.Offset), fmt.Sprint(r.Length), cli.HumanBytes(r.Length)})
	}
	if err := f.print(cmd, t, doc); err != nil || f.output != cli.FormatTable {
		return err
	}
	return f.say(cmd, nil, "%s, %s of %s", count(len(doc.Ranges), "range"), cli.HumanBytes(doc.Listed), cli.HumanBytes(doc.Size))
}
