#define ${upper}_N_COLUMNS ${n_columns}
#define ${upper}_N_CATEGORIES ${n_categories}
