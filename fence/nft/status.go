package nft

// counter follows the counters of a family's rules, which begin anew when the
// table is made anew.
type counter struct{ last, total uint64 }

func (c *counter) see(now uint64) {
	if now >= c.last {
		c.total += now - c.last
	} else {
		c.total += now
	}
	c.last = now
}

func (f *Filter) count(readings []reading) {
	var v4, v6 uint64
	for _, r := range readings {
		v4 += dropped(r.rules, clients4)
		v6 += dropped(r.rules, clients6)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[0].see(v4)
	f.counts[1].see(v6)
}

// Status says how things are, without asking the kernel.
func (f *Filter) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Table: f.config.Table, Protection: f.protect, Dropped4: f.counts[0].total, Dropped6: f.counts[1].total}
	if f.link != nil {
		s.Holder = f.link.pid
	}
	return s
}
