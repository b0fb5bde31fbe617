package fsinfo

// AmountOf exports amount, to test it with values that this kernel does not
// report.
func AmountOf(total, free, available, unit uint64) Amount {
	return amount(total, free, available, unit)
}
