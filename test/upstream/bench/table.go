package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// value is a figure with its unit.
type value struct {
	number float64
	text   string
}

func duration[T time.Duration | int64](d T) value {
	t := time.Duration(d)
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if t >= unit {
			return value{float64(t), t.Round(unit / 100).String()}
		}
	}
	return value{float64(t), t.String()}
}

func count(n int) value { return value{float64(n), fmt.Sprint(n)} }

func size(bytes int64) value {
	switch {
	case bytes >= 1<<20:
		return value{float64(bytes), fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))}
	case bytes >= 1<<10:
		return value{float64(bytes), fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))}
	default:
		return value{float64(bytes), fmt.Sprintf("%d B", bytes)}
	}
}

// table has a row for each figure, in order of insertion.
type table struct {
	mu    sync.Mutex
	order []string
	rows  map[string]map[string][]value
}

func newTable() *table { return &table{rows: map[string]map[string][]value{}} }

func (t *table) add(figure, kind string, v value) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[figure] == nil {
		t.order, t.rows[figure] = append(t.order, figure), map[string][]value{}
	}
	t.rows[figure][kind] = append(t.rows[figure][kind], v)
}

func (t *table) print(out io.Writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "figure\tkubelet\tcleat\tkubelet / cleat")
	for _, figure := range t.order {
		k, c := median(t.rows[figure]["kubelet"]), median(t.rows[figure]["cleat"])
		ratio := "-"
		if c.number > 0 && k.number > 0 {
			ratio = fmt.Sprintf("%.3g", k.number/c.number)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", figure, k.text, c.text, ratio)
	}
	return w.Flush()
}

func median(all []value) value {
	if len(all) == 0 {
		return value{text: "-"}
	}
	sorted := slices.SortedFunc(slices.Values(all), func(a, b value) int { return cmp.Compare(a.number, b.number) })
	return sorted[len(sorted)/2]
}
